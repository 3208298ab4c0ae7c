//! Folders written in one process: which files are there, and what they are called.

use std::fs::{self, File};
use std::path::Path;

use datafusion::arrow::array::{ArrayRef, Int64Array, StringArray, UInt64Array};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::catalog::memory::MemorySourceConfig;
use datafusion::datasource::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_proto::bytes::{
    physical_plan_from_bytes_with_extension_codec, physical_plan_to_bytes_with_extension_codec,
};
use tempfile::TempDir;

use super::exec::WRITTEN;
use super::*;
use crate::{VolleyPhysicalCodec, with_rules};

/// Creates a session with a table of the numbers 0 to 99 in three partitions, and a folder.
fn session() -> (SessionContext, TempDir) {
    let job = JobSettings {
        id: Some("job".into()),
        ..JobSettings::default()
    };
    let config = SessionConfig::new().with_target_partitions(3);
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(config.with_option_extension(job))
        .build();
    let session = SessionContext::new_with_state(with_rules(state).build());
    let batch = |from: i64, to: i64| {
        let ids = Arc::new(Int64Array::from_iter_values(from..to)) as ArrayRef;
        RecordBatch::try_from_iter([("id", ids)]).unwrap()
    };
    let parts = vec![
        vec![batch(0, 10)],
        vec![batch(10, 40)],
        vec![batch(40, 100)],
    ];
    let numbers = MemTable::try_new(parts[0][0].schema(), parts).unwrap();
    session
        .register_table("numbers", Arc::new(numbers))
        .unwrap();
    (session, tempfile::tempdir().unwrap())
}

async fn plan(session: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    let frame = session.sql(sql).await.unwrap();
    frame.create_physical_plan().await.unwrap()
}

async fn count(session: &SessionContext, plan: Arc<dyn ExecutionPlan>) -> u64 {
    let batches = collect(plan, session.task_ctx()).await.unwrap();
    let counts = batches[0].column(0).as_any().downcast_ref::<UInt64Array>();
    counts.unwrap().value(0)
}

/// Returns the names of the files in a folder, and the sum of their lines.
fn read(folder: &Path) -> (Vec<String>, i64) {
    let (mut names, mut sum) = (Vec::new(), 0);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        sum += text
            .lines()
            .filter_map(|line| line.parse::<i64>().ok())
            .sum::<i64>();
        names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
    }
    (names, sum)
}

#[tokio::test]
async fn each_partition_is_a_file_and_has_its_name() {
    let (session, dir) = session();
    let copy = format!("COPY numbers TO '{}/' STORED AS CSV", dir.path().display());
    let copy = plan(&session, &copy).await;
    assert_eq!(count(&session, copy).await, 100);
    let (names, sum) = read(dir.path());
    assert_eq!((names.len(), sum), (3, 99 * 100 / 2));
    assert!(names.iter().all(|name| name.ends_with(".csv")), "{names:?}");
}

#[tokio::test]
async fn partition_columns_make_folders() {
    let (session, dir) = session();
    let copy = format!(
        "COPY (SELECT id, id >= 40 AS big FROM numbers) TO '{}' STORED AS CSV PARTITIONED BY (big)",
        dir.path().join("out.csv").display()
    );
    let copy = plan(&session, &copy).await;
    assert_eq!(count(&session, copy).await, 100);
    for (folder, files, sum) in [("big=false", 2, 39 * 40 / 2), ("big=true", 1, 139 * 60 / 2)] {
        let (names, read) = read(&dir.path().join("out.csv").join(folder));
        assert_eq!((names.len(), read), (files, sum), "{folder}: {names:?}");
        assert!(names.iter().all(|name| name.ends_with(".csv")), "{names:?}");
    }
}

/// A folder of no rows has a file that tells the columns, once.
#[tokio::test]
async fn no_rows_are_a_file_of_columns() {
    let (session, dir) = session();
    for format in ["CSV", "PARQUET", "JSON"] {
        let folder = dir.path().join(format);
        for _ in 0..2 {
            let copy = format!(
                "COPY (SELECT id, 'x' AS name FROM numbers WHERE id < 0) TO '{}/' STORED AS {format}",
                folder.display()
            );
            let copy = plan(&session, &copy).await;
            assert_eq!(count(&session, copy).await, 0, "{format}");
            let files = fs::read_dir(&folder).map(Iterator::count);
            assert_eq!(files.unwrap_or(0), 1, "{format}");
        }
        if format == "JSON" {
            continue;
        }
        let read = format!(
            "CREATE EXTERNAL TABLE {format} STORED AS {format} LOCATION '{}/'",
            folder.display()
        );
        session.sql(&read).await.unwrap();
        let read = session.table(format.to_lowercase()).await.unwrap();
        let columns: Vec<_> = read.schema().fields().iter().map(|f| f.name()).collect();
        assert_eq!(columns, ["id", "name"], "{format}");
        assert_eq!(read.count().await.unwrap(), 0, "{format}");
    }
}

#[tokio::test]
async fn no_rows_in_folders_of_values_are_no_file() {
    let (session, dir) = session();
    let copy = format!(
        "COPY (SELECT id, id > 5 AS big FROM numbers WHERE id < 0) TO '{}/' STORED AS CSV \
         PARTITIONED BY (big)",
        dir.path().display()
    );
    let copy = plan(&session, &copy).await;
    assert_eq!(count(&session, copy).await, 0);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Values in runs and on their own, in every row, of two columns, and found again one by one.
#[tokio::test]
async fn every_row_is_in_the_folder_of_its_values() {
    let (session, dir) = session();
    let rows = "SELECT id, 'x' || id AS name, id % 3 AS third, \
        CAST('2020-01-01' AS DATE) + CAST(id / 50 AS INT) AS day, CAST(id / 40 AS DOUBLE) / 4 AS quarter, \
        CASE WHEN id % 20 < 18 THEN 'a/b' ELSE '' END AS mixed, id > 70 AS big FROM numbers";
    let columns = [
        "id BIGINT",
        "name VARCHAR",
        "third BIGINT",
        "day DATE",
        "quarter DOUBLE",
    ];
    let columns = columns.into_iter().chain(["mixed VARCHAR", "big BOOLEAN"]);
    for (by, value) in [
        ("third", "third = 1"),
        ("mixed", "mixed = 'a/b'"),
        ("quarter", "quarter = 0.25"),
        ("quarter", "quarter = 0.0"),
        ("day, third", "day = '2020-01-02'"),
        ("big", "big"),
        ("mixed, day, third", "third = 2"),
    ] {
        let folder = dir.path().join(value.replace(['/', ' ', '\''], "-"));
        let copy = format!(
            "COPY ({rows}) TO '{}/' STORED AS CSV PARTITIONED BY ({by})",
            folder.display()
        );
        let copy = plan(&session, &copy).await;
        assert_eq!(count(&session, copy).await, 100, "{by}");
        let split: Vec<_> = by.split(", ").collect();
        let is_split = |column: &&str| split.contains(&column.split(' ').next().unwrap());
        let (split, kept): (Vec<&str>, Vec<&str>) = columns.clone().partition(is_split);
        let create = format!(
            "CREATE OR REPLACE EXTERNAL TABLE copied ({}, {}) STORED AS CSV \
             PARTITIONED BY ({by}) LOCATION '{}/'",
            kept.join(", "),
            split.join(", "),
            folder.display()
        );
        session.sql(&create).await.unwrap();
        let names = "id, name, third, day, quarter, coalesce(mixed, '') AS mixed, big";
        for (these, those) in [
            ("copied", format!("({rows})")),
            (&format!("({rows})"), "copied".into()),
        ] {
            for condition in [value, "true"] {
                let differing = format!(
                    "SELECT {names} FROM {these} WHERE {condition} \
                     EXCEPT SELECT {names} FROM {those} WHERE {condition}"
                );
                let differing = session.sql(&differing).await.unwrap();
                assert_eq!(
                    differing.count().await.unwrap(),
                    0,
                    "{by}: {these}, {condition}"
                );
            }
        }
        let copied = session.table("copied").await.unwrap();
        assert_eq!(copied.count().await.unwrap(), 100, "{by}");
    }
}

#[tokio::test]
async fn what_no_folder_can_be_called_is_an_error() {
    let (session, dir) = session();
    for (columns, by, expected) in [
        (
            "id, '__HIVE_DEFAULT_PARTITION__' AS odd",
            "odd",
            "folder name of NULL",
        ),
        ("id, make_array(id) AS odd", "odd", "cannot name folders"),
        ("id, now() AS odd", "odd", "cannot name folders"),
        (
            "id, arrow_cast(arrow_cast(90000000, 'Int64'), 'Date64') AS odd",
            "odd",
            "has a time of day",
        ),
        ("id", "id", "names every column"),
    ] {
        let copy = format!(
            "COPY (SELECT {columns} FROM numbers) TO '{}/' STORED AS PARQUET PARTITIONED BY ({by})",
            dir.path().display()
        );
        let copy = plan(&session, &copy).await;
        let error = collect(copy, session.task_ctx()).await.unwrap_err();
        let said = error.to_string();
        assert!(said.contains(expected), "{said}");
    }
}

#[tokio::test]
async fn what_a_lost_attempt_left_is_removed_and_nothing_else() {
    let (session, dir) = session();
    let [lost, other, mine] = [
        ".volley-job/1/a.csv.uncommitted",
        ".volley-another/1/a.csv.uncommitted",
        "mine.csv",
    ]
    .map(|name| dir.path().join(name));
    for file in [&lost, &other, &mine] {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "1000000\n").unwrap();
    }
    let copy = format!(
        "COPY numbers TO '{}/' STORED AS CSV OPTIONS ('format.has_header' 'false')",
        dir.path().display()
    );
    let copy = plan(&session, &copy).await;
    assert_eq!(count(&session, copy).await, 100);
    assert!(!lost.exists() && other.exists() && mine.exists());
    assert!(!dir.path().join(".volley-job").exists());
    // What is not committed is not in the table, whether it guesses its files by their names or not.
    for columns in ["", "(id BIGINT)"] {
        let create = format!(
            "CREATE OR REPLACE EXTERNAL TABLE copied {columns} STORED AS CSV LOCATION '{}/' \
             OPTIONS ('format.has_header' 'false')",
            dir.path().display()
        );
        session.sql(&create).await.unwrap();
        let rows = session.table("copied").await.unwrap().count().await;
        assert_eq!(rows.unwrap(), 101, "{columns}");
    }
}

#[tokio::test]
async fn a_url_s_fragment_is_no_part_of_the_folder() {
    let (session, dir) = session();
    let mine = dir.path().join("run/mine.csv");
    fs::create_dir_all(mine.parent().unwrap().join("empty")).unwrap();
    fs::write(&mine, "1000\n").unwrap();
    for (rows, written) in [
        ("SELECT id FROM numbers WHERE id < 0", 0),
        ("SELECT id FROM numbers", 100),
    ] {
        let copy = format!(
            "COPY ({rows}) TO 'file://{}/run#3/' STORED AS CSV",
            dir.path().display()
        );
        let copy = plan(&session, &copy).await;
        assert_eq!(count(&session, copy).await, written, "{rows}");
    }
    assert!(mine.exists() && mine.with_file_name("empty").exists());
    fs::remove_dir(mine.with_file_name("empty")).unwrap();
    assert_eq!(read(mine.parent().unwrap()).1, 1000 + 99 * 100 / 2);
}

#[tokio::test]
async fn text_has_dictionaries_and_numbers_have_none_unless_asked() {
    let (session, dir) = session();
    let rows = "SELECT id, id > 7 AS big, 'text' AS name FROM numbers";
    // `None` is Volley's default.
    for (setting, expected) in [
        (None, [false, false, true]),
        (Some(true), [true, false, true]),
        (Some(false), [false; 3]),
    ] {
        session
            .state_ref()
            .write()
            .config_mut()
            .options_mut()
            .execution
            .parquet
            .dictionary_enabled = setting;
        for to in [format!("{setting:?}/"), format!("{setting:?}.parquet")] {
            let to = dir.path().join(to);
            let copy = format!("COPY ({rows}) TO '{}' STORED AS PARQUET", to.display());
            let copy = plan(&session, &copy).await;
            // As it is on an executor.
            let (codec, task) = (VolleyPhysicalCodec::default(), session.task_ctx());
            let sent = physical_plan_to_bytes_with_extension_codec(copy, &codec).unwrap();
            let copy = physical_plan_from_bytes_with_extension_codec(&sent, &task, &codec).unwrap();
            assert_eq!(count(&session, copy).await, 100);
            let file = match fs::read_dir(&to) {
                Ok(mut files) => files.next().unwrap().unwrap().path(),
                Err(_) => to,
            };
            let file = SerializedFileReader::new(File::open(&file).unwrap()).unwrap();
            let columns = file.metadata().row_group(0).columns().iter();
            let dictionaries = columns.map(|c| c.dictionary_page_offset().is_some());
            assert_eq!(dictionaries.collect::<Vec<_>>(), expected, "{setting:?}");
        }
    }
}

#[tokio::test]
async fn rows_are_added_to_a_table() {
    let (session, dir) = session();
    fs::write(dir.path().join("mine.csv"), "1000\n").unwrap();
    let create = format!(
        "CREATE EXTERNAL TABLE kept (id BIGINT) STORED AS CSV LOCATION '{}/' \
         OPTIONS ('format.has_header' 'false')",
        dir.path().display()
    );
    session.sql(&create).await.unwrap();
    let insert = plan(&session, "INSERT INTO kept SELECT id FROM numbers").await;
    assert!(insert.is::<CommitExec>(), "{insert:?}");
    assert_eq!(count(&session, insert).await, 100);
    let rows = session.table("kept").await.unwrap().count().await;
    assert_eq!(rows.unwrap(), 101);
}

/// The stages of a plan keep no order that nobody asks for, so its writer is to ask for it.
#[tokio::test]
async fn rows_in_an_order_are_left_to_datafusion() {
    let (session, dir) = session();
    let folder = dir.path().display();
    // The second by what is not written, the third in one partition.
    for rows in [
        "SELECT id FROM numbers ORDER BY id DESC",
        "SELECT id + 1 AS next FROM numbers ORDER BY id % 7",
        "SELECT id + 1 AS next FROM (SELECT * FROM numbers LIMIT 50) ORDER BY id % 7",
    ] {
        let copy = plan(
            &session,
            &format!("COPY ({rows}) TO '{folder}/' STORED AS CSV"),
        )
        .await;
        assert!(copy.is::<DataSinkExec>(), "{rows}: {copy:?}");
        assert_eq!(adds_files(copy.as_ref()), Some(format!("{folder}/")));
    }
    let create = format!(
        "CREATE EXTERNAL TABLE sorted (id BIGINT) STORED AS CSV WITH ORDER (id) \
         LOCATION '{folder}/' OPTIONS ('format.has_header' 'false')"
    );
    session.sql(&create).await.unwrap();
    let insert = plan(&session, "INSERT INTO sorted SELECT id FROM numbers").await;
    assert!(insert.is::<DataSinkExec>(), "{insert:?}");
}

#[tokio::test]
async fn files_that_only_their_writer_sees_are_an_error() {
    let (session, dir) = session();
    let copy = format!("COPY numbers TO '{}/' STORED AS CSV", dir.path().display());
    let copy = plan(&session, &copy).await;
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from(vec!["elsewhere"])),
        Arc::new(UInt64Array::from(vec![5])),
        Arc::new(UInt64Array::from(vec![2])),
    ];
    let written = RecordBatch::try_new(Arc::clone(&WRITTEN), columns).unwrap();
    let written = MemorySourceConfig::try_new_exec(&[vec![written]], Arc::clone(&WRITTEN), None);
    let target = copy.downcast_ref::<CommitExec>().unwrap().target().clone();
    let commit = CommitExec::new(target, written.unwrap());
    let error = collect(Arc::new(commit), session.task_ctx())
        .await
        .unwrap_err();
    let said = error.to_string();
    assert!(said.contains("2 of 2 files"), "{said}");
    assert!(said.contains(dir.path().to_str().unwrap()), "{said}");
}

/// Returns the sum of the numbers in a folder, its number of files, and whether no staging folder is left.
fn whole(dir: &TempDir) -> (i64, usize, bool) {
    let (names, sum) = read(dir.path());
    let is_clean = !dir.path().join(".volley-job").exists();
    (sum, names.len(), is_clean)
}

/// Plans a job that copies the numbers into a folder.
async fn copying(session: &SessionContext, dir: &TempDir) -> Arc<dyn ExecutionPlan> {
    let copy = format!("COPY numbers TO '{}/' STORED AS CSV", dir.path().display());
    plan(session, &copy).await
}

/// Runs the plan's tasks, which write their files, and returns a commit of them that has not run.
async fn written(
    session: &SessionContext,
    copy: &Arc<dyn ExecutionPlan>,
) -> Arc<dyn ExecutionPlan> {
    let commit = copy.downcast_ref::<CommitExec>().unwrap();
    let input = Arc::clone(copy.children()[0]);
    let rows = collect(input, session.task_ctx()).await.unwrap();
    let rows = MemorySourceConfig::try_new_exec(&[rows], Arc::clone(&WRITTEN), None);
    Arc::new(CommitExec::new(commit.target().clone(), rows.unwrap()))
}

const ALL: (i64, usize, bool) = (99 * 100 / 2, 3, true);

#[tokio::test]
async fn a_job_that_is_run_again_after_its_commit_adds_nothing() {
    let (session, dir) = session();
    for run in 1..=3 {
        let copy = copying(&session, &dir).await;
        assert_eq!(adds_files(copy.as_ref()), None);
        assert_eq!(count(&session, copy).await, 100);
        assert_eq!(whole(&dir), ALL, "run {run}");
    }
    // The task that commits alone, whose files are in place.
    let copy = copying(&session, &dir).await;
    let commit = written(&session, &copy).await;
    for _ in 0..2 {
        assert_eq!(count(&session, Arc::clone(&commit)).await, 100);
        assert_eq!(whole(&dir), ALL);
    }
    // Another job adds its own.
    let other = JobSettings {
        id: Some("jobs".into()),
        ..JobSettings::default()
    };
    let state = session.state_ref();
    let config = state.write().config().clone();
    *state.write().config_mut() = config.with_option_extension(other);
    let copy = copying(&session, &dir).await;
    assert_eq!(count(&session, copy).await, 100);
    assert_eq!(whole(&dir), (2 * ALL.0, 6, true));
}

/// The one that commits is lost after it has written down what is to be moved, and moved so many files.
#[tokio::test]
async fn another_finishes_a_commit() {
    for moved in 0..=3 {
        let (session, dir) = session();
        let copy = copying(&session, &dir).await;
        let commit = written(&session, &copy).await;
        let staging = dir.path().join(".volley-job");
        let decision = staging.join("moves.json.uncommitted");
        let files = fs::read_dir(&staging).unwrap().map(|task| {
            let task = task.unwrap().path();
            let file = fs::read_dir(task).unwrap().next().unwrap().unwrap().path();
            let name = file.file_name().unwrap().to_str().unwrap();
            let name = name.strip_suffix(".uncommitted").unwrap();
            let to = dir.path().join(format!("job-{name}"));
            (file, to)
        });
        let files: Vec<_> = files.collect();
        let path = |path: &Path| {
            path.display()
                .to_string()
                .trim_start_matches('/')
                .to_owned()
        };
        let moves = files.iter().map(|(from, to)| (path(from), path(to)));
        let moves: Vec<_> = moves.collect();
        let json = serde_json::json!({"rows": 100, "files": moves});
        fs::write(&decision, json.to_string()).unwrap();
        for (from, to) in &files[..moved] {
            fs::rename(from, to).unwrap();
        }
        // By the next attempt of the job, or by the same task again.
        let again = match moved % 2 {
            0 => copying(&session, &dir).await,
            _ => Arc::clone(&commit),
        };
        assert_eq!(count(&session, again).await, 100, "{moved} were moved");
        assert_eq!(whole(&dir), ALL, "{moved} were moved");
        // One that was frozen meanwhile.
        assert_eq!(count(&session, commit).await, 100);
        assert_eq!(whole(&dir), ALL);
    }
}

#[tokio::test]
async fn two_attempts_that_commit_at_once_commit_one() {
    let (session, dir) = session();
    let copy = copying(&session, &dir).await;
    let [one, other] = [
        written(&session, &copy).await,
        written(&session, &copy).await,
    ];
    let both = tokio::join!(count(&session, one), count(&session, other));
    assert_eq!(both, (100, 100));
    assert_eq!(whole(&dir), ALL);
}

#[tokio::test]
async fn a_file_that_is_neither_here_nor_there_is_an_error() {
    let (session, dir) = session();
    let copy = copying(&session, &dir).await;
    let commit = written(&session, &copy).await;
    let staging = dir.path().join(".volley-job");
    let folder = dir.path().display().to_string();
    let folder = folder.trim_start_matches('/');
    let from = format!("{folder}/.volley-job/t/nowhere.csv.uncommitted");
    let moves = [(from, format!("{folder}/job-nowhere.csv"))];
    let json = serde_json::json!({"rows": 1, "files": moves});
    fs::write(staging.join("moves.json.uncommitted"), json.to_string()).unwrap();
    let error = collect(commit, session.task_ctx()).await.unwrap_err();
    assert!(error.to_string().contains("nowhere.csv"), "{error}");
}

#[tokio::test]
async fn a_record_of_somebody_else_moves_nothing() {
    let others = tempfile::tempdir().unwrap();
    let secret = others.path().join("secret.csv");
    fs::write(&secret, "x").unwrap();
    let (session, dir) = session();
    let path = |path: &Path| {
        path.display()
            .to_string()
            .trim_start_matches('/')
            .to_owned()
    };
    let into = path(&dir.path().join("job-secret.csv"));
    let own = path(&dir.path().join(".volley-job/t/1.csv.uncommitted"));
    for (from, to) in [
        (path(&secret), into),
        (own.clone(), path(&others.path().join("job-1.csv"))),
        (own, path(&dir.path().join("1.csv"))),
        ("../../etc/passwd".to_owned(), "a".to_owned()),
    ] {
        let copy = copying(&session, &dir).await;
        let commit = written(&session, &copy).await;
        let json = serde_json::json!({"rows": 1, "files": [(&from, &to)]});
        let record = dir.path().join(".volley-job/moves.json.uncommitted");
        fs::write(record, json.to_string()).unwrap();
        let error = collect(commit, session.task_ctx()).await.unwrap_err();
        assert!(
            error.to_string().contains("names other files"),
            "{from}: {error}"
        );
        assert!(secret.exists());
        fs::remove_dir_all(dir.path().join(".volley-job")).unwrap();
    }
}

#[tokio::test]
async fn a_plan_that_writes_arrives_as_it_was_sent() {
    let (session, dir) = session();
    // A table that is on the wire, and options that are not the defaults.
    let copy = format!(
        "COPY (VALUES (1, 'a'), (2, 'b')) TO '{}/' STORED AS CSV \
         OPTIONS ('format.has_header' 'false', 'format.delimiter' '|')",
        dir.path().display()
    );
    let copy = plan(&session, &copy).await;
    let (codec, task) = (VolleyPhysicalCodec::default(), session.task_ctx());
    let sent = physical_plan_to_bytes_with_extension_codec(Arc::clone(&copy), &codec).unwrap();
    let received = physical_plan_from_bytes_with_extension_codec(&sent, &task, &codec).unwrap();
    let display =
        |plan: &Arc<dyn ExecutionPlan>| displayable(plan.as_ref()).indent(true).to_string();
    assert_eq!(display(&received), display(&copy));
    assert_eq!(count(&session, received).await, 2);
    let file = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap();
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "1|a\n2|b\n");
}

#[tokio::test]
async fn an_empty_text_is_no_null_whatever_the_text_for_null() {
    let (session, dir) = session();
    for (style, due) in [
        ("Necessary", "1,\"\",NA\n2,x,NA\n"),
        ("NonNumeric", "1,\"\",\"NA\"\n2,\"x\",\"NA\"\n"),
        ("Never", "1,,NA\n2,x,NA\n"),
    ] {
        let copy = format!(
            "COPY (SELECT * FROM (VALUES (1, '', CAST(NULL AS VARCHAR)), (2, 'x', NULL)) ORDER BY 1) \
             TO '{}/{style}.csv' STORED AS CSV OPTIONS ('format.has_header' 'false', 'format.null_value' 'NA', \
             'format.quote_style' '{style}')",
            dir.path().display()
        );
        let copy = exact_writer(&plan(&session, &copy).await).unwrap();
        assert_eq!(count(&session, copy).await, 2);
        let file = dir.path().join(format!("{style}.csv"));
        assert_eq!(fs::read_to_string(file).unwrap(), due, "{style}");
    }
}

#[tokio::test]
async fn a_single_file_is_left_to_datafusion() {
    let (session, dir) = session();
    let file = dir.path().join("out.csv");
    let copy = plan(&session, &format!("COPY numbers TO '{}'", file.display())).await;
    assert!(copy.is::<DataSinkExec>(), "{copy:?}");
    assert_eq!(adds_files(copy.as_ref()), None);
}
