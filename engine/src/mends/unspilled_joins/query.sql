SET datafusion.execution.batch_size = 1;
SET datafusion.execution.target_partitions = 1;
SET datafusion.runtime.memory_limit = '1K';
SELECT count(*) FROM (SELECT value AS x FROM range(20)) a RIGHT JOIN (SELECT value AS y FROM range(13)) b ON x + 100 < y;
-- error: Resources exhausted
