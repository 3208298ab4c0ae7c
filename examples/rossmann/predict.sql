-- One row a test row, sorted by "Id". Closed stores are predicted as any other.

COPY (
  SELECT "Id", "predicted_Sales" AS "Sales"
  FROM ML.PREDICT(MODEL rossmann, (SELECT * FROM test_features))
  ORDER BY "Id"
) TO '${out}/submission.csv' STORED AS CSV OPTIONS ('format.has_header' 'true');
