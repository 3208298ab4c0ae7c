//! Executors lost under prediction: the predictions equal those of a cluster without faults.

use serde_json::Value;
use volley_tests::{Cluster, Samples};

use crate::asking::{Phase, reach};
use crate::fault::Fault;
use crate::fitting::setup;
use crate::scene::{self, Loss, SOON};

pub(crate) const FAULTS: &[Fault] = &[
    ("an executor that predicts is killed", || lose(Loss::Kill)),
    ("an executor that predicts freezes", || lose(Loss::Freeze)),
];

/// Sums up predictions over `times` copies of the rows.
fn predict(samples: &Samples, times: u64) -> String {
    let copies: Vec<_> = (0..times).map(|copy| format!("({copy})")).collect();
    let copies = copies.join(", ");
    format!(
        "SET datafusion.optimizer.repartition_file_min_size = 1; \
         SET datafusion.execution.target_partitions = 6; \
         SET datafusion.execution.batch_size = 64; {} \
         SELECT k, count(*) AS n, sum(round(predicted_y * 1000)) AS s FROM ML.PREDICT(MODEL m, \
         (SELECT s.* FROM samples s CROSS JOIN (VALUES {copies}) g)) \
         GROUP BY k ORDER BY k",
        samples.table()
    )
}

fn lose(loss: Loss) {
    let mut cluster: Cluster = scene::cluster(3);
    let fit = setup("m", "ranks = 2").epochs(3).start(&cluster);
    fit.trained(&cluster);
    let samples = Samples::write(cluster.dir(), 20_000);
    let (asked, times) = reach(Phase::Scan, &cluster, |times| {
        let sql = predict(&samples, times);
        let mut command = cluster.command();
        let client = cluster.spawn(command.args(["--format", "json", "-c", &sql]));
        (client, times)
    });
    loss.strike(&mut cluster, 1);
    let run = asked.client.wait(SOON);
    let interrupted: Vec<Value> = run.rows();
    loss.make_up(&mut cluster, 1);
    assert_eq!(interrupted, cluster.query(&predict(&samples, times)));
    let rows: u64 = interrupted.iter().filter_map(|row| row["n"].as_u64()).sum();
    assert_eq!(rows, 20_000 * times, "every row once");
    scene::is_well(&cluster, 3);
}
