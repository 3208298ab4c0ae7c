-- Five shops, twelve weeks of their sales, and the weather of their towns, as CSV files in ${data}.

CREATE OR REPLACE EXTERNAL TABLE shops (shop INT, kind VARCHAR, town VARCHAR)
STORED AS CSV LOCATION '${data}/shops.csv' OPTIONS ('format.has_header' 'true');

CREATE OR REPLACE EXTERNAL TABLE sales (shop INT, day DATE, promo BOOLEAN, sales DOUBLE)
STORED AS CSV LOCATION '${data}/sales.csv' OPTIONS ('format.has_header' 'true');

CREATE OR REPLACE EXTERNAL TABLE weather (town VARCHAR, day DATE, celsius DOUBLE, rain BOOLEAN)
STORED AS CSV LOCATION '${data}/weather.csv' OPTIONS ('format.has_header' 'true');
