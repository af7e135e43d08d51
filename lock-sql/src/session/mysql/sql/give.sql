-- :key. One row of one text: the session, whether it held the lock (0 also where nobody did), and how many others it held. It holds
-- nothing afterwards.
SELECT CONCAT_WS(' ', CONNECTION_ID() + :asked, COALESCE(RELEASE_LOCK(:key), 0), RELEASE_ALL_LOCKS()) AS a;
