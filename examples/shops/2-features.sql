-- Joins and windows: the features of a shop's day that are known before it begins, and how rows are split.

CREATE OR REPLACE VIEW features AS
SELECT
  sales.shop,
  sales.day,
  kind,
  promo,
  rain,
  celsius,
  CAST(date_part('dow', sales.day) AS INT) AS weekday,
  -- The shop's last open day, and its mean of the six before this one.
  lag(sales) OVER (PARTITION BY sales.shop ORDER BY sales.day) AS sales_before,
  avg(sales) OVER (
    PARTITION BY sales.shop ORDER BY sales.day ROWS BETWEEN 6 PRECEDING AND 1 PRECEDING
  ) AS sales_of_a_week,
  CASE WHEN sales.day >= DATE '2025-05-12' THEN 'EVAL' ELSE 'TRAIN' END AS split,
  sales
FROM sales
JOIN shops ON shops.shop = sales.shop
JOIN weather ON weather.town = shops.town AND weather.day = sales.day;

SELECT shop, day, weekday, sales_before, sales_of_a_week, sales FROM features ORDER BY shop, day LIMIT 5;

-- Each shop's best day.
SELECT shop, kind, day, sales
FROM (SELECT *, row_number() OVER (PARTITION BY shop ORDER BY sales DESC) AS place FROM features)
WHERE place = 1
ORDER BY shop;

-- How sales follow the rain, by kind of shop.
SELECT kind, avg(sales) FILTER (WHERE rain) AS wet, avg(sales) FILTER (WHERE NOT rain) AS dry
FROM features
GROUP BY kind
ORDER BY kind;
