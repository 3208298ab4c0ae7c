SELECT count(*) AS numbers FROM range(1000000);
