//! Tests of plans of queries over Parquet files, and of their rows.

use std::sync::Arc;

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::displayable;
use datafusion::prelude::{SessionConfig, SessionContext};
use tempfile::TempDir;

use crate::settings::JobSettings;
use crate::{VolleyQueryPlanner, with_rules};

/// Tables of a shop: sales and stock of the same items in some weeks, and dimensions that describe them.
const TABLES: [(&str, &str); 5] = [
    (
        "sales",
        "SELECT v AS id, v % 97 AS item, v % 360 AS day, v % 11 AS amount, \
         CASE WHEN v % 7 = 0 THEN NULL ELSE v % 5 END AS shop FROM range(0, 40000) AS t(v)",
    ),
    (
        "stock",
        "SELECT v % 97 AS item, (v / 97) % 360 AS day, v % 13 AS amount FROM range(0, 60000) AS t(v)",
    ),
    (
        "days",
        "SELECT v AS id, v / 7 AS week, v / 30 AS month FROM range(0, 720) AS t(v)",
    ),
    (
        "items",
        "SELECT v AS id, concat('item ', v % 40) AS name, v % 9 AS kind FROM range(0, 97) AS t(v)",
    ),
    (
        "shops",
        "SELECT CASE WHEN v = 3 THEN NULL ELSE v END AS id, v % 2 AS region FROM range(0, 5) AS t(v)",
    ),
];

/// Query 72 of TPC-DS in small: both facts first, then the filtered dimensions.
const FACTS_FIRST: &str = "SELECT items.name, d.week, count(*) AS n FROM sales \
    JOIN stock ON sales.item = stock.item JOIN items ON items.id = sales.item \
    JOIN days d ON sales.day = d.id JOIN days e ON stock.day = e.id \
    WHERE d.week = e.week AND stock.amount < sales.amount AND d.month = 3 AND items.kind = 2 \
    GROUP BY items.name, d.week";

struct Shop {
    session: SessionContext,
    dir: TempDir,
}

impl Shop {
    /// Opens the shop with or without the rule.
    async fn open(ordered: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = SessionConfig::new().with_target_partitions(2);
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_query_planner(Arc::new(VolleyQueryPlanner))
            .build();
        let mut state = with_rules(state).build();
        if !ordered {
            let rules = state.physical_optimizers().iter().cloned();
            let rules = rules.filter(|rule| rule.name() != "order_joins").collect();
            let builder = SessionStateBuilder::new_from_existing(state);
            state = builder.with_physical_optimizer_rules(rules).build();
        }
        let session = SessionContext::new_with_state(state);
        for (table, rows) in TABLES {
            let file = dir.path().join(format!("{table}.parquet"));
            let file = file.display();
            for statement in [
                format!("COPY ({rows}) TO '{file}' STORED AS PARQUET"),
                format!("CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{file}'"),
            ] {
                let done = session.sql(&statement).await.unwrap();
                done.collect().await.unwrap();
            }
        }
        Self { session, dir }
    }

    async fn plan(&self, query: &str) -> String {
        let frame = self.session.sql(query).await.unwrap();
        let plan = frame.create_physical_plan().await.unwrap();
        let plan = displayable(plan.as_ref()).indent(false).to_string();
        let dir = self.dir.path().display().to_string();
        plan.replace(dir.trim_start_matches('/'), "")
    }

    /// Returns the rows, sorted by their text.
    async fn rows(&self, query: &str) -> Vec<String> {
        let frame = self.session.sql(query).await.unwrap();
        let rows = pretty_format_batches(&frame.collect().await.unwrap()).unwrap();
        let mut rows: Vec<_> = rows.to_string().lines().map(str::to_owned).collect();
        rows.sort();
        rows
    }
}

/// Sales of a few items, each compared with the average of all sales of its item.
const CORRELATED: &str = "SELECT sum(s.id) FROM sales s JOIN items i ON i.id = s.item WHERE i.kind = 2 \
    AND s.amount < (SELECT avg(amount) FROM sales WHERE sales.item = i.id)";

/// Returns the join that runs last.
fn last_join(plan: &str) -> &str {
    plan.lines()
        .find(|line| line.contains("HashJoinExec"))
        .unwrap()
}

#[tokio::test]
async fn what_multiplies_rows_is_joined_last() {
    let (ordered, plain) = (Shop::open(true).await, Shop::open(false).await);
    let plan = plain.plan(FACTS_FIRST).await;
    assert!(!last_join(&plan).contains("amount"), "{plan}");
    let plan = ordered.plan(FACTS_FIRST).await;
    // The stock is joined with sales that days and items have filtered, by item and day at once.
    let last = last_join(&plan);
    let keys = ["item", "day", "filter=amount"];
    assert!(keys.iter().all(|key| last.contains(key)), "{plan}");
    let expected = plain.rows(FACTS_FIRST).await;
    assert!(expected.len() > 10);
    assert_eq!(ordered.rows(FACTS_FIRST).await, expected);
}

#[tokio::test]
async fn an_order_stays_that_is_good_enough() {
    let (ordered, plain) = (Shop::open(true).await, Shop::open(false).await);
    for query in [
        "SELECT count(*) FROM shops JOIN sales ON shops.id = sales.shop JOIN items ON items.id = sales.item",
        "SELECT sum(sales.amount) FROM days JOIN sales ON days.id = sales.day",
        "SELECT * FROM items a JOIN items b ON a.id = b.id JOIN items c ON a.kind = c.id",
        // The number of distinct texts is unknown: if it is small, joining by them makes many rows.
        "SELECT count(*) FROM items a JOIN sales ON a.id = sales.item JOIN items b ON a.name = b.name \
         JOIN items c ON b.name = c.name",
    ] {
        assert_eq!(
            ordered.plan(query).await,
            plain.plan(query).await,
            "{query}"
        );
    }
    for shop in [&ordered, &plain] {
        let off = "SET datafusion.optimizer.join_reordering = false";
        shop.session.sql(off).await.unwrap();
    }
    assert_eq!(
        ordered.plan(FACTS_FIRST).await,
        plain.plan(FACTS_FIRST).await
    );
}

#[tokio::test]
async fn rows_are_the_same_in_any_order() {
    let (ordered, plain) = (Shop::open(true).await, Shop::open(false).await);
    let facts = "sales JOIN stock ON sales.item = stock.item";
    let thin = "d.month = 3 AND sales.id < 4000";
    let mut changed = 0;
    for query in [
        // Columns twice, under other names, and in another order.
        format!(
            "SELECT stock.amount AS a, d.id, stock.amount AS b, d.id AS e, items.* FROM {facts} \
            JOIN days d ON d.id = stock.day JOIN items ON items.id = stock.item WHERE {thin} AND items.kind = 1"
        ),
        // No columns at all.
        format!("SELECT count(*) FROM {facts} JOIN days d ON d.id = stock.day WHERE {thin}"),
        // Two columns of one relation that equal the same one.
        format!(
            "SELECT sales.id, stock.day FROM {facts} JOIN days d ON d.id = sales.day AND d.week = stock.day WHERE {thin}"
        ),
        // A transitive equality of three columns, and NULLs, which equal nothing.
        format!(
            "SELECT sales.id, shops.region FROM {facts} JOIN shops ON shops.id = sales.shop \
            JOIN days d ON d.id = sales.day AND d.id = stock.day WHERE {thin} AND shops.region = 1"
        ),
        // Conditions over three relations, and a relation that nothing links.
        format!(
            "SELECT sales.id, d.week, s.region FROM {facts} JOIN days d ON d.id = stock.day CROSS JOIN shops s \
            WHERE {thin} AND sales.amount + stock.amount > d.week + 9 AND (d.month = 3 OR stock.amount = s.region)"
        ),
        // Trees within a tree, below outer and semi joins, groups and limits.
        format!(
            "SELECT q.item, i.name, q.n FROM (SELECT sales.item, count(*) AS n FROM {facts} JOIN days d ON d.id = stock.day \
            WHERE {thin} GROUP BY sales.item) q LEFT JOIN items i ON i.id = q.item AND i.kind = 2"
        ),
        format!(
            "SELECT sales.id, stock.amount FROM {facts} JOIN days d ON d.id = sales.day \
            WHERE {thin} AND EXISTS (SELECT 1 FROM shops WHERE shops.id = sales.shop) \
            AND stock.day NOT IN (SELECT id FROM days WHERE week > 2)"
        ),
        format!(
            "SELECT sales.id, o.region FROM {facts} JOIN days d ON d.id = sales.day \
            LEFT JOIN shops o ON o.id = sales.shop JOIN items ON items.id = stock.item \
            WHERE {thin} AND items.kind = 3 AND o.region IS NULL"
        ),
        // A self join, which makes columns of the same names.
        format!(
            "SELECT a.id, b.id AS other FROM sales a JOIN sales b ON a.item = b.item JOIN sales ON sales.id = a.id \
            JOIN days d ON d.id = b.day WHERE {thin} AND b.id < 300"
        ),
    ] {
        let expected = plain.rows(&query).await;
        assert_eq!(ordered.rows(&query).await, expected, "{query}");
        changed += usize::from(ordered.plan(&query).await != plain.plan(&query).await);
    }
    assert!(
        changed >= 5,
        "{changed} plans differ: the test shows nothing"
    );
}

#[tokio::test]
async fn semi_joins_are_done_where_their_columns_come_from() {
    let (ordered, plain) = (Shop::open(true).await, Shop::open(false).await);
    let large = "(SELECT item FROM stock GROUP BY item HAVING sum(amount) > 3700)";
    for (query, moved) in [
        (format!("sales.item IN {large}"), true),
        (
            "NOT EXISTS (SELECT 1 FROM stock WHERE stock.item = sales.item AND stock.amount + 50 < items.kind)"
                .to_owned(),
            true,
        ),
        // Its columns belong to two relations.
        (
            "EXISTS (SELECT 1 FROM stock WHERE stock.item = items.kind AND stock.amount = sales.amount)".to_owned(),
            false,
        ),
        // It is volatile, so it must be evaluated for each output row.
        (
            "EXISTS (SELECT 1 FROM stock WHERE stock.item = sales.item AND stock.amount + sales.amount < 99 + random())"
                .to_owned(),
            false,
        ),
    ] {
        let query = format!(
            "SELECT items.name, count(*) FROM sales JOIN items ON items.id = sales.item \
             WHERE {query} GROUP BY items.name"
        );
        let plan = ordered.plan(&query).await;
        let last = last_join(&plan);
        assert_eq!(last.contains("join_type=Inner"), moved, "{plan}");
        let expected = plain.rows(&query).await;
        assert!(expected.len() > 10, "{query}: {expected:?}");
        assert_eq!(ordered.rows(&query).await, expected, "{query}");
    }
}

#[tokio::test]
async fn groups_that_no_row_asks_for_are_not_made() {
    let (ordered, plain) = (Shop::open(true).await, Shop::open(false).await);
    for shop in [&ordered, &plain] {
        let session = shop.session.state_ref();
        let mut state = session.write();
        let options = state.config_mut().options_mut();
        options.extensions.insert(JobSettings {
            stage_bytes: 0,
            single_task_bytes: 0,
            ..JobSettings::default()
        });
    }
    let below_groups = |plan: &str| {
        let lines: Vec<_> = plan.lines().map(str::trim).collect();
        let mut pairs = lines.windows(2);
        pairs.any(|pair| {
            pair[0].contains("mode=Partial, gby=[item") && pair[1].contains("RightSemi")
        })
    };
    let outer = |kind: &str| {
        format!(
            "SELECT i.id, g.n FROM (SELECT * FROM items WHERE kind = 2) i \
             {kind} (SELECT item, count(*) AS n FROM sales GROUP BY item) g ON g.item = i.id"
        )
    };
    for (query, reduced) in [
        (CORRELATED.to_owned(), true),
        (outer("LEFT JOIN"), true),
        // The join emits unmatched groups.
        (outer("FULL JOIN"), false),
        (outer("RIGHT JOIN"), false),
        // The join matches all groups.
        (CORRELATED.replace("i.kind = 2 AND", ""), false),
        // The groups are of an expression, or of grouping sets.
        (
            outer("JOIN")
                .replace("SELECT item,", "SELECT item % 97 AS item,")
                .replace("GROUP BY item", "GROUP BY item % 97"),
            false,
        ),
        (
            outer("JOIN").replace("GROUP BY item", "GROUP BY GROUPING SETS ((item), ())"),
            false,
        ),
        // Another join needs all groups, and reads the same ones.
        (
            format!(
                "{} JOIN (SELECT item, count(*) AS n FROM sales GROUP BY item) h ON h.n = g.n",
                outer("JOIN")
            ),
            false,
        ),
    ] {
        let plan = ordered.plan(&query).await;
        assert_eq!(below_groups(&plan), reduced, "{query}: {plan}");
        let expected = plain.rows(&query).await;
        assert!(expected.len() > 4, "{query}");
        assert_eq!(ordered.rows(&query).await, expected, "{query}");
    }
}
