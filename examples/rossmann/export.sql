-- The features as Parquet, for other tools: Volley itself trains straight from the query. One pass
-- writes both: ${out}/features/dataset=train/ and ${out}/features/dataset=test/.

COPY (
  SELECT CASE WHEN is_test THEN 'test' ELSE 'train' END AS dataset, features.* EXCEPT (is_test)
  FROM features
  WHERE is_test OR "Sales" > 0
) TO '${out}/features/' STORED AS PARQUET PARTITIONED BY (dataset);
