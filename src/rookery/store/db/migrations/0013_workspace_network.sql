-- min_schema: 13
-- What a workspace may reach since its last start, as its page shows it. Templates say none, hosts, public or host from
-- now on, which older code cannot read. Workspaces that were started before have what their template asked for then.

ALTER TABLE workspaces ADD COLUMN network text;

UPDATE workspaces w
   SET network = CASE r.manifest #>> '{sandbox,network}' WHEN 'full' THEN 'host' WHEN 'proxy' THEN 'hosts' ELSE 'none' END
  FROM template_revisions r
 WHERE r.template = w.template
   AND r.revision = w.template_revision
   AND w.started_at IS NOT NULL;
