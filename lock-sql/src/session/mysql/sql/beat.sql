-- :idle (a statement that sets how long the session may be idle, or nothing). One row of one text: the session.
:idle SELECT CONCAT_WS(' ', CONNECTION_ID() + :asked) AS a;
