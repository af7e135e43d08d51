-- Drops what has expired, of whatever client, once in ten seconds for all clients together: whoever comes first then.
/* onelock sweeps */ SET @now := TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
UPDATE `onelock_store` SET swept = @now WHERE id = 1 AND ABS(swept - @now) >= 10000000;
SET @due := ROW_COUNT();
SELECT MIN(ends) INTO @earliest FROM `onelock_line` WHERE @due;
DELETE FROM `onelock_line` WHERE @earliest <= @now AND ends <= @now;
