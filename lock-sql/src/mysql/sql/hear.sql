-- :own :before (bells) :limit (microseconds) :name :number :holder :ahead. What listen.sql does, once, for who holds no other bell: when the
-- bell of who is right ahead was rung, or after :limit. The bells come first: a table with one row is filled before what is joined to it is read. Who rings
-- has not committed yet; a reading that locks waits for that, where another would be too early.
SELECT CAST(MAX(IF(l.number = :number AND l.holder = :holder, l.number, NULL)) AS SIGNED),
IF(:ahead = 0, :holder, CONCAT(X'00', :holder)), CAST(:ahead AS SIGNED),
CAST(MAX(IF(l.number < :number, l.number, NULL)) AS SIGNED), CAST(COALESCE(MAX(b.silence), 0) AS SIGNED)
FROM (SELECT CASE WHEN IF(IS_USED_LOCK(:own) = CONNECTION_ID(), 0, GET_LOCK(:own, 0)) IS NULL THEN 0
ELSE CASE GET_LOCK(:before, :limit * 1e-6) WHEN 1 THEN RELEASE_LOCK(:before) * 0 WHEN 0 THEN 1 ELSE 0 END END AS silence LIMIT 1) b
STRAIGHT_JOIN `onelock_line` l FORCE INDEX (PRIMARY)
WHERE l.name = :name AND l.number <= :number AND l.ends > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))
LOCK IN SHARE MODE;
