-- Secrets of tenants are in a file of their own on SQLite; the number is kept, in step with PostgreSQL.
SELECT 1;
