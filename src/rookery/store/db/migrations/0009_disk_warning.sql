-- min_schema: 8
-- What the agent says of its disk, apart from the warning of the driver: the one comes and goes while a workspace runs,
-- the other stays for the whole start.

ALTER TABLE workspaces ADD COLUMN disk_warning text;
