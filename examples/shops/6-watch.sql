-- What the cluster did, as tables: the same that the web page shows.

SELECT job_id, state, seconds, name FROM volley.jobs LIMIT 5;

SELECT model, state, ranks, epoch, epochs, rows_per_second FROM volley.training_runs;

SELECT at, rank, text FROM volley.log WHERE train_id IS NOT NULL ORDER BY at LIMIT 10;

EXPLAIN ANALYZE SELECT kind, avg(sales) FROM features GROUP BY kind;
