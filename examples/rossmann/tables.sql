-- The seven tables of the Rossmann job, as they lie in ${data}.
-- Every column has its type, so that nothing is inferred from the rows that happen to come first.
-- An empty field, quoted or not, is NULL; an "Id", by which test rows are told, cannot be.

CREATE OR REPLACE EXTERNAL TABLE train (
  "Store" INT, "DayOfWeek" INT, "Date" DATE, "Sales" INT, "Customers" INT,
  "Open" VARCHAR, "Promo" VARCHAR, "StateHoliday" VARCHAR, "SchoolHoliday" VARCHAR
) STORED AS CSV LOCATION '${data}/train.csv' OPTIONS ('format.has_header' 'true');

CREATE OR REPLACE EXTERNAL TABLE test (
  "Id" INT NOT NULL, "Store" INT, "DayOfWeek" INT, "Date" DATE,
  "Open" VARCHAR, "Promo" VARCHAR, "StateHoliday" VARCHAR, "SchoolHoliday" VARCHAR
) STORED AS CSV LOCATION '${data}/test.csv' OPTIONS ('format.has_header' 'true');

CREATE OR REPLACE EXTERNAL TABLE store (
  "Store" INT, "StoreType" VARCHAR, "Assortment" VARCHAR, "CompetitionDistance" INT,
  "CompetitionOpenSinceMonth" INT, "CompetitionOpenSinceYear" INT,
  "Promo2" INT, "Promo2SinceWeek" INT, "Promo2SinceYear" INT, "PromoInterval" VARCHAR
) STORED AS CSV LOCATION '${data}/store.csv' OPTIONS ('format.has_header' 'true');

CREATE OR REPLACE EXTERNAL TABLE store_states (
  "Store" INT, "State" VARCHAR
) STORED AS CSV LOCATION '${data}/store_states.csv' OPTIONS ('format.has_header' 'true');

CREATE OR REPLACE EXTERNAL TABLE state_names (
  "StateName" VARCHAR, "State" VARCHAR
) STORED AS CSV LOCATION '${data}/state_names.csv' OPTIONS ('format.has_header' 'true');

CREATE OR REPLACE EXTERNAL TABLE googletrend (
  "file" VARCHAR, "week" VARCHAR, "trend" INT
) STORED AS CSV LOCATION '${data}/googletrend.csv' OPTIONS ('format.has_header' 'true');

CREATE OR REPLACE EXTERNAL TABLE weather (
  "file" VARCHAR, "Date" DATE,
  "Max_TemperatureC" INT, "Mean_TemperatureC" INT, "Min_TemperatureC" INT,
  "Dew_PointC" INT, "MeanDew_PointC" INT, "Min_DewpointC" INT,
  "Max_Humidity" INT, "Mean_Humidity" INT, "Min_Humidity" INT,
  "Max_Sea_Level_PressurehPa" INT, "Mean_Sea_Level_PressurehPa" INT, "Min_Sea_Level_PressurehPa" INT,
  "Max_VisibilityKm" INT, "Mean_VisibilityKm" INT, "Min_VisibilitykM" INT,
  "Max_Wind_SpeedKm_h" INT, "Mean_Wind_SpeedKm_h" INT, "Max_Gust_SpeedKm_h" INT,
  "Precipitationmm" DOUBLE, "CloudCover" INT, "Events" VARCHAR, "WindDirDegrees" INT
) STORED AS CSV LOCATION '${data}/weather.csv' OPTIONS ('format.has_header' 'true');
