-- :key :holder :says (conditions on the locks by which a session says what it holds)
-- One row: the session, and whether that holder holds this.
SELECT CAST(CONNECTION_ID() AS SIGNED) + :asked, CAST(COALESCE(IS_USED_LOCK(:key) = :holder AND :says, 0) AS SIGNED);
