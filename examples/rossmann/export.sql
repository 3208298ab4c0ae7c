-- The features as Parquet, for other tools: Volley itself trains straight from the query.

COPY (SELECT * FROM train_features) TO '${out}/train.parquet' STORED AS PARQUET;

COPY (SELECT * FROM test_features) TO '${out}/test.parquet' STORED AS PARQUET;
