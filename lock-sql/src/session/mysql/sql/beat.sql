-- :idle (a statement that sets how long the session may be idle, or nothing). One row: the session.
:idle SELECT CAST(CONNECTION_ID() AS SIGNED) + :asked AS session;
