"""Rules about text and files: uploads, attachments, skills, snippets, search queries."""
