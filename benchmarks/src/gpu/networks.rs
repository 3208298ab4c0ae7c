//! Networks of every kind and their training methods on one NVIDIA GPU: checks that each learns the same as on the
//! CPU.
//!
//! The module above compares the GPU's speed with PyTorch's; a unit test of the trainer compares outputs and
//! gradients of one batch with the CPU's.

use std::path::{Path, PathBuf};

use anyhow::ensure;

use super::{GPU, query};
use crate::cluster::{Cluster, scratch_folder};
use crate::comparison::{Case, Comparison, Unit, VOLLEY, number};
use crate::example::{Example, Trained, command};

/// Name of the training on the same host's processors.
const ON_CPU: &str = "Volley, device = 'cpu'";
/// Tolerated relative difference between losses on GPU and CPU: sums are in another order, may have fewer digits
/// (TF32), and each step builds on the previous one.
const LOSSES_WITHIN: f64 = 0.02;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory of the seven tables
    #[arg(long)]
    data: PathBuf,
    /// Passes over the rows
    #[arg(long, default_value_t = 3)]
    epochs: usize,
    /// Only those whose name contains this
    #[arg(long, default_value = "")]
    only: String,
}

/// Training to compare, with default options except for the given ones.
struct Training {
    name: &'static str,
    rows: usize,
    /// Columns selected from the sample.
    columns: &'static str,
    options: &'static str,
}

const SALES: &str = r#""Sales", "CompetitionDistance", "Max_TemperatureC", "trend", "AfterPromo", "BeforePromo",
    "DayOfWeek", "State", "StoreType", "Events", "Promo", "StateHoliday""#;
const NUMBERS: &str = r#""Sales", "CompetitionDistance", "Max_TemperatureC", "trend", "AfterPromo", "BeforePromo",
    "DayOfWeek", "Mean_Humidity""#;
const CATEGORIES: &str = r#""Sales", "State", "StoreType", "Events", "Promo", "StateHoliday""#;

const fn sales(name: &'static str, rows: usize, options: &'static str) -> Training {
    Training {
        name,
        rows,
        columns: SALES,
        options,
    }
}

const TRAININGS: [Training; 26] = [
    sales("defaults, an ensemble of 8", 4_096, ""),
    sales("defaults, one network", 20_000, ""),
    Training {
        columns: NUMBERS,
        ..sales("defaults, numbers alone, an ensemble of 8", 4_096, "")
    },
    Training {
        columns: CATEGORIES,
        ..sales("defaults, categories alone, an ensemble of 8", 4_096, "")
    },
    sales("defaults, 2 ranks", 4_096, "ranks = 2"),
    Training {
        columns: r#""StoreType", "Sales", "CompetitionDistance", "Promo", "State""#,
        ..sales(
            "dnn_classifier, four classes, an ensemble of 8",
            4_096,
            "model_type = 'dnn_classifier', input_label_cols = ['StoreType']",
        )
    },
    Training {
        columns: r#""Promo", "Sales", "DayOfWeek", "StoreType", "AfterPromo""#,
        ..sales(
            "dnn_classifier, two classes, focal loss",
            20_000,
            "model_type = 'dnn_classifier', input_label_cols = ['Promo'], loss = 'focal', auto_class_weights = true",
        )
    },
    sales("linear_reg", 20_000, "model_type = 'linear_reg'"),
    sales(
        "linear_reg, l1_reg",
        20_000,
        "model_type = 'linear_reg', l1_reg = 0.001",
    ),
    Training {
        columns: r#""StoreType", "Sales", "CompetitionDistance", "Promo", "State""#,
        ..sales(
            "logistic_reg, four classes",
            20_000,
            "model_type = 'logistic_reg', input_label_cols = ['StoreType']",
        )
    },
    sales(
        "piecewise linear embeddings, an ensemble of 8",
        4_096,
        "numeric_embedding = 'piecewise_linear'",
    ),
    sales(
        "piecewise linear embeddings of ranks",
        20_000,
        "numeric_embedding = 'piecewise_linear', numeric_transform = 'quantile'",
    ),
    sales(
        "numbers as they are, without batch norm",
        20_000,
        "numeric_embedding = 'none', batch_norm = false",
    ),
    sales(
        "layer norm, residual, cross and concat layers",
        20_000,
        "network = [dense(256), mish, dropout(0.1), layer_norm, residual(layer_norm, dense(256), gelu), \
         concat([cross(2)], [dense(64), tanh])]",
    ),
    sales(
        "layer norm in an ensemble of 4",
        4_096,
        "ensemble_size = 4, network = [dense(64), layer_norm, silu, residual(dense(64), selu, layer_norm), dense(32), elu]",
    ),
    sales("wide and factors", 20_000, "wide = true, factors = 4"),
    sales(
        "wide and factors in an ensemble of 3",
        4_096,
        "wide = true, factors = 4, ensemble_size = 3",
    ),
    sales(
        "three quantiles",
        20_000,
        "loss = 'quantile', quantile = [0.1, 0.5, 0.9]",
    ),
    Training {
        columns: r#""Sales", "trend" AS "second", "CompetitionDistance", "AfterPromo", "State", "Promo""#,
        ..sales(
            "two labels",
            20_000,
            "input_label_cols = ['Sales', 'second'], loss_weights = [1, 0.5]",
        )
    },
    sales("poisson", 20_000, "loss = 'poisson'"),
    sales(
        "sgd, Nesterov's momentum, clip_norm",
        20_000,
        "optimizer = 'sgd', momentum = 0.9, nesterov = true, clip_norm = 1",
    ),
    sales(
        "adagrad, clip_value",
        20_000,
        "optimizer = 'adagrad', clip_value = 0.5",
    ),
    sales(
        "rmsprop, momentum, averaged weights",
        20_000,
        "optimizer = 'rmsprop', momentum = 0.5, learn_rate = 0.0005, ema_momentum = 0.99",
    ),
    sales(
        "ftrl, l1_reg and l2_reg",
        20_000,
        "optimizer = 'ftrl', l1_reg = 0.0001, l2_reg = 0.001",
    ),
    sales("three passes a step", 20_000, "accumulate = 3"),
    sales(
        "100 rows a step, 2 ranks",
        20_000,
        "batch_size = 100, ranks = 2",
    ),
];

/// Runs each training on the GPU and on the CPU, and writes the results.
///
/// # Errors
/// When the losses of a training differ, or it cannot be trained; after all trainings have run and their results are
/// written.
pub(crate) fn run(args: &Args, results: &Path) -> anyhow::Result<()> {
    let gpu = query("name,driver_version")?;
    let dir = scratch_folder()?;
    let cluster = Cluster::start(dir.path(), 2)?;
    let example = Example {
        cluster: &cluster,
        data: &std::path::absolute(&args.data)?,
        out: dir.path(),
    };
    example.export()?;
    let most = TRAININGS.iter().map(|training| training.rows).max();
    example.sample(most.unwrap_or(0))?;

    let mut comparison =
        Comparison::new("gpu-networks", "Networks of every kind on one GPU", METHOD);
    let versions = &mut comparison.report.versions;
    versions.insert("GPU and driver".to_owned(), gpu);
    let mut failed = Vec::new();
    for training in TRAININGS.iter().filter(|t| t.name.contains(&args.only)) {
        let name = training.name;
        match compared(&example, training, args.epochs) {
            Ok((case, losses, same)) => {
                comparison.cases.push(case);
                comparison.remark(format!("{name}: {losses}"));
                failed.extend((!same).then_some(name));
            }
            Err(error) => {
                comparison.remark(format!("{name}: {error:#}"));
                failed.push(name);
            }
        }
        // Writes the results after each case, in case the run is cut short.
        comparison.write(results)?;
    }
    ensure!(
        failed.is_empty(),
        "losses are not the CPU's of: {}",
        failed.join("; ")
    );
    Ok(())
}

const METHOD: &str = "Rows of the Rossmann features, from one Parquet file; each network is trained from fresh weights with \
    `CREATE MODEL`'s defaults but for what its name says, by `device = 'cuda:0'` and by `device = 'cpu'` from the same \
    seed. Rows a second are those of the last epoch. Two ranks share the GPU.";

/// Compares one training on both devices: speed, losses by epoch, and whether the losses agree.
fn compared(
    example: &Example<'_>,
    training: &Training,
    epochs: usize,
) -> anyhow::Result<(Case, String, bool)> {
    let [gpu, cpu] = [GPU, "cpu"].map(|device| trained(example, training, epochs, device));
    let (gpu, cpu) = (gpu?, cpu?);
    let mut case = Case::new(training.name, Unit::RowsPerSecond);
    for (system, trained) in [(VOLLEY, &gpu), (ON_CPU, &cpu)] {
        if let Some(epoch) = trained.history.last() {
            case.push(system, epoch.rows_per_second());
        }
    }
    let losses = |trained: &Trained| -> Vec<f64> {
        let epochs = trained.history.iter();
        let losses = epochs.map(|epoch| [Some(epoch.loss), epoch.eval_loss]);
        losses.flatten().flatten().collect()
    };
    let (on_gpu, on_cpu) = (losses(&gpu), losses(&cpu));
    let apart = |(gpu, cpu): (&f64, &f64)| (gpu - cpu).abs() / cpu.abs();
    let most = on_gpu.iter().zip(&on_cpu).map(apart).fold(0.0, f64::max);
    // This form treats NaN as a difference.
    let same = on_gpu.len() == on_cpu.len() && most <= LOSSES_WITHIN;
    let told = |losses: &[f64]| {
        let losses: Vec<_> = losses.iter().map(|loss| number(*loss)).collect();
        losses.join(", ")
    };
    let told = format!(
        "losses of training and evaluation by epochs {} on the GPU, {} on the CPU; at most {:.3} % apart.",
        told(&on_gpu),
        told(&on_cpu),
        100.0 * most
    );
    Ok((case, told, same))
}

fn trained(
    example: &Example<'_>,
    training: &Training,
    epochs: usize,
    device: &str,
) -> anyhow::Result<Trained> {
    let Training {
        rows,
        columns,
        options,
        ..
    } = training;
    let mut all = vec![
        format!("device = '{device}'"),
        // Two ranks share a GPU.
        format!("device_share = {}", device != "cpu"),
        format!("epochs = {epochs}"),
        "seed = 1".to_owned(),
        "refit = false".to_owned(),
    ];
    if !options.contains("input_label_cols") {
        all.push("input_label_cols = ['Sales']".to_owned());
    }
    if !options.contains("ranks") {
        all.push("ranks = 1".to_owned());
    }
    all.extend((!options.is_empty()).then(|| (*options).to_owned()));
    let table =
        r#"CREATE EXTERNAL TABLE sample STORED AS PARQUET LOCATION '${out}/sample.parquet'"#;
    let statement = format!(
        r#"CREATE OR REPLACE MODEL network OPTIONS ({}) AS SELECT {columns} FROM sample WHERE "row" < {rows}"#,
        all.join(", ")
    );
    example.publish(&[], vec![command(table), command(&statement)])
}
