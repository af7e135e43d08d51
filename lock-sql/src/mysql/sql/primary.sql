-- Fails, with error 1242, on a server that takes no writes, and answers nothing on one that does. As text: on MariaDB 12 the variable
-- has words for its values, of which only one is off. Behind what it is sent with, it says that the server was the primary then.
SET @primary := (SELECT 1 UNION ALL SELECT 1 FROM DUAL WHERE CAST(@@GLOBAL.read_only AS CHAR) NOT IN ('0', 'OFF'));
