//! The web page, in a browser: its drawing of running work, what a reader does with it, and that it needs nothing but the
//! scheduler.
//!
//! With `VOLLEY_UPDATE_DOCS`, the pictures of the docs are taken as well.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use volley_tests::{Browser, Cluster, Setup, eventually, images};

use crate::access::Guarded;

const SOON: Duration = Duration::from_secs(60);
/// Width of a phone in CSS pixels.
const PHONE: u32 = 390;
/// Width and height of a desk's window.
const DESK: (u32, u32) = (1200, 860);

/// Number of points in the first curve on the page.
const POINTS: &str =
    "(document.querySelector('path.curve')?.getAttribute('d').match(/[ML]/g) ?? []).length";
/// Field in which lists are searched.
const SEARCH: &str = "document.querySelector('.filters input')";
/// Answers in the scheduler's place: a large cluster.
const MANY: &str = include_str!("page/many.js");

#[test]
fn a_browser_shows_the_work() {
    // Without logins: the form is tested elsewhere.
    let cluster = Cluster::start_with(Setup {
        executors: 3,
        scheduler_args: vec!["--insecure".to_owned()],
        always_in_stages: true,
        ..Setup::default()
    });
    let Some(browser) = Browser::start(cluster.dir()) else {
        return;
    };
    let tables = write_sales(cluster.dir());
    let run = |sql: &str| cluster.run(&["--format", "json", "-c", &format!("{tables}{sql}")]);
    let origin = format!("http://{}/", cluster.address());
    browser.widen(DESK.0, DESK.1);
    browser.open(&origin);
    for executor in ["executor-0", "executor-1", "executor-2"] {
        browser.await_look(&shows(executor), SOON);
    }
    let joined = run(JOIN);
    assert_eq!(joined.code, Some(0), "{}", joined.stderr);
    let written = run(&format!(
        "COPY ({FEATURES}) TO '{}/' STORED AS PARQUET",
        cluster.dir().join("features").display()
    ));
    assert_eq!(written.code, Some(0), "{}", written.stderr);
    for options in [
        "epochs = 12",
        "epochs = 12, learn_rate = 0.02, hidden_units = [64, 32]",
    ] {
        let trained = run(&train("sales", options));
        assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    }

    thread::scope(|scope| {
        let training = scope.spawn(|| run(&train("visits", "epochs = 100000")));
        let running =
            "SELECT job_id FROM volley.jobs WHERE state = 'running' AND train_id IS NOT NULL";
        let job = eventually("the training", SOON, || {
            let jobs = cluster.query(running);
            Some(jobs.first()?["job_id"].as_str()?.to_owned())
        });
        let job = job.as_str();
        // From the overview to the job, as a reader would go.
        let link = format!("document.querySelector('a[href=\"#/job/{job}\"]')");
        browser.await_look(&format!("{link} != null"), SOON);
        browser.look(&format!("{link}.click()"));
        browser.await_look(&shows(&format!("Job {job}")), SOON);
        for drawn in [
            ".stage.training.running",
            ".lane.training.running",
            ".stage .rank:nth-of-type(2)",
            ".split dt:nth-of-type(2)",
        ] {
            browser.await_look(&format!("document.querySelector('{drawn}') != null"), SOON);
        }
        // All of a rank's time, of which it computes only a part.
        browser.await_look(&shows("in collectives, "), SOON);
        browser.await_look(&shows("% other, of "), SOON);
        // The whole statement, which lists of jobs cut.
        let statement = "document.querySelector('.statement pre').textContent";
        browser.await_look(&format!("{statement}.includes('epochs = 100000')"), SOON);
        let first = browser.await_look(&format!("{POINTS} > 1 && {POINTS}"), SOON);
        browser.await_look(&format!("{POINTS} > {first}"), SOON);

        picture(&browser, "training", &format!("#/job/{job}"), 0);
        picture(&browser, "overview", "#/", 0);
        browser.darken(true);
        picture(&browser, "dark", "#/", 0);
        browser.darken(false);
        an_executor_has_a_page(&browser, job);
        browser.narrow(PHONE);
        for (page, title) in [
            ("#/", "Overview"),
            ("#/executors", "Executors"),
            ("#/executor/executor-0", "Executor executor-0"),
            ("#/models", "Models"),
            ("#/model/sales", "Model sales"),
            ("#/log", "Log"),
            ("#/jobs", "Jobs"),
        ] {
            fits(&browser, page, title);
        }
        // The list of jobs has their statements on a phone.
        browser.await_look(&shows(job), SOON);
        let cell = "document.querySelector('.cards td.name').getBoundingClientRect()";
        let shown = browser.look(&format!("[{cell}.left, {cell}.right]"));
        assert!(
            shown[0].as_f64() >= Some(0.0) && shown[1].as_f64() <= Some(f64::from(PHONE)),
            "{shown}"
        );
        if let Some(images) = images() {
            fs::write(images.join("page-phone.png"), browser.picture()).unwrap();
        }
        fits(&browser, &format!("#/job/{job}"), &format!("Job {job}"));
        browser.widen(DESK.0, DESK.1);
        browser.look("(window.confirm = () => true, document.getElementById('cancel').click())");
        browser.await_look("document.querySelector('.pill.cancelled') != null", SOON);
        browser.await_look("document.querySelector('.stage.cancelled') != null", SOON);
        browser.look("location.hash = '#/jobs'");
        browser.await_look(&shows(job), SOON);
        for (typed, found) in [
            ("no such statement", "No matching jobs"),
            (job, "1 to 1 of 1"),
            ("", "1 to "),
        ] {
            search(&browser, typed);
            browser.await_look(&shows(found), SOON);
        }
        assert_eq!(training.join().unwrap().code, Some(1), "it was cancelled");
    });

    stages_are_told(&browser, &cluster);
    rows_of_a_training_are_counted_once(&cluster);
    models_are_compared(&browser);
    fs::write(cluster.dir().join("tables.sql"), &tables).unwrap();
    let report = cluster.report(&[
        "sales",
        "-f",
        "tables.sql",
        "--rows",
        FEATURES,
        "--by",
        "store",
        "--publish",
    ]);
    assert_eq!(report.code, Some(0), "{}", report.stderr);
    let link = "document.querySelector('a[href^=\"/reports/sales/2/\"]') != null";
    browser.await_look(link, SOON);

    browser.look("location.hash = '#/log'");
    browser.await_look(
        "document.querySelector('.log a[href^=\"#/job/\"]') != null",
        SOON,
    );
    picture(&browser, "log", "#/log", 0);
    search(&browser, "no such line");
    browser.await_look(&shows("No matching lines"), SOON);
    search(&browser, "");
    picture(&browser, "jobs", "#/jobs", 0);
    picture(&browser, "models", "#/model/sales", 0);

    assert_eq!(browser.console(), Vec::<String>::new());
    let requests = browser.requests();
    assert!(requests.len() > 10, "{requests:?}");
    let elsewhere = requests.iter().find(|url| !url.starts_with(&origin));
    assert_eq!(elsewhere, None);

    // The report draws without a scheduler, on a phone too.
    browser.narrow(PHONE);
    browser.open(&format!(
        "file://{}",
        cluster.dir().join("sales.html").display()
    ));
    browser.await_look("document.querySelectorAll('svg').length > 4", SOON);
    let color = "getComputedStyle(document.querySelector('svg .fill.one')).fill";
    assert_eq!(browser.look(color), "rgb(31, 95, 174)");
    within(&browser, "the report");
    assert_eq!(browser.console(), Vec::<String>::new());
}

/// Checks the page of the executors, and that of one on which this job runs.
fn an_executor_has_a_page(browser: &Browser, job: &str) {
    picture(browser, "executors", "#/executors", 0);
    browser.look("location.hash = '#/executors'");
    browser.await_look("document.title === 'Executors · Volley'", SOON);
    browser.await_look(
        "document.querySelector('a[href=\"#/executor/executor-0\"]') != null",
        SOON,
    );
    browser.click("a[href='#/executor/executor-0']");
    browser.await_look("document.title === 'Executor executor-0 · Volley'", SOON);
    for part in [
        "Process memory",
        "Reserved by queries",
        "Limit of each rank",
        "Devices",
    ] {
        browser.await_look(&shows(part), SOON);
    }
    // A sample every few seconds, by which curves grow.
    let first = browser.await_look(&format!("{POINTS} > 1 && {POINTS}"), SOON);
    browser.await_look(&format!("{POINTS} > {first}"), SOON);
    for chart in ["Memory", "CPU", "Disk", "Network"] {
        let drawn =
            format!("document.querySelector('svg[aria-label^=\"{chart} of executor-0\"]') != null");
        browser.await_look(&drawn, SOON);
    }
    // One of three executors has no rank of two.
    let running = format!("document.querySelector('a[href=\"#/job/{job}\"]') != null");
    let found = (0..3).find(|number| {
        browser.look(&format!("location.hash = '#/executor/executor-{number}'"));
        let title = format!("document.title === 'Executor executor-{number} · Volley'");
        browser.await_look(&title, SOON);
        browser.look(&running) == true
    });
    let number = found.expect("the executors' pages have the job");
    // Beside the memory of the process, that of the rank that runs there.
    browser.await_look(&shows("Memory of ranks, at least"), SOON);
    for name in [
        "process",
        "reserved by queries",
        "ranks, at least",
        "limit of queries",
    ] {
        let key = format!(
            "[...document.querySelectorAll('figcaption .key')].some(({{innerText}}) => innerText === '{name}')"
        );
        browser.await_look(&key, SOON);
    }
    picture(
        browser,
        "executor",
        &format!("#/executor/executor-{number}"),
        0,
    );
}

/// Checks the pages of a query that joins, and of one that writes.
fn stages_are_told(browser: &Browser, cluster: &Cluster) {
    let job = |part: &str| {
        let sql = format!("SELECT job_id FROM volley.jobs WHERE name LIKE '%{part}%'");
        cluster.query(&sql)[0]["job_id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (join, copy) = (job("w.rain, count"), job("COPY"));
    browser.look(&format!("location.hash = '#/job/{copy}'"));
    browser.await_look(&format!("document.title === 'Job {copy} · Volley'"), SOON);
    browser.await_look(
        "[...document.querySelectorAll('.facts div')].some(({innerText}) => innerText === 'Rows written\\n1,200')",
        SOON,
    );
    browser.look(&format!("location.hash = '#/job/{join}'"));
    for part in ["join ", " on store", "group by region", "executor-"] {
        browser.await_look(&shows(part), SOON);
    }
    let told = cluster.query(&format!(
        "SELECT description, rows_read, rows, tasks_done, attempts, started <= ended AS timed, \
         array_length(executors) AS executors FROM volley.stages WHERE job_id = '{join}'"
    ));
    assert!(told.len() > 2, "{told:?}");
    for stage in &told {
        assert!(stage["rows_read"].as_u64() > Some(0), "{stage}");
        assert_eq!(
            (&stage["attempts"], &stage["timed"]),
            (&json!(1), &json!(true)),
            "{stage}"
        );
        assert!(
            stage["executors"].as_u64() <= stage["tasks_done"].as_u64(),
            "{stage}"
        );
    }
    // Each stage is in the timeline, the graph, the table and the plans.
    for kind in [
        ".lane",
        ".stage",
        "[aria-label=Stages] tbody tr",
        "#plans > details",
    ] {
        let count = format!(
            "document.querySelectorAll('{kind}').length === {}",
            told.len()
        );
        browser.await_look(&count, SOON);
    }
    // A stage of the graph opens its plan, by the keyboard.
    browser.look("document.querySelector('.stage').focus()");
    browser.press("Enter");
    browser.await_look(
        "document.querySelector('#plans details[open] .operator') != null",
        SOON,
    );
    browser.await_look(&shows("DataSource"), SOON);
    picture(browser, "job", &format!("#/job/{join}"), 0);
    picture(browser, "stages", &format!("#/job/{join}"), 620);
    let table = cluster.query(
        "SELECT executor_id, count(*) AS samples, max(process_bytes) AS bytes FROM volley.executor_vitals \
         GROUP BY executor_id ORDER BY executor_id",
    );
    assert_eq!(table.len(), 3, "{table:?}");
    assert!(
        table
            .iter()
            .all(|row| row["bytes"].as_u64() > Some(1 << 20)),
        "{table:?}"
    );
}

/// Checks the rows of the two trainings of two ranks that have succeeded: 1200 of the query. The second has prepared ones, if
/// its ranks run where these are.
fn rows_of_a_training_are_counted_once(cluster: &Cluster) {
    let rows = cluster.query(
        "SELECT s.rows_read, r.ranks, r.rows, e.least, e.most \
         FROM (SELECT train_id, rows_read FROM volley.stages WHERE kind = 'training' AND state = 'succeeded') s \
         JOIN (SELECT train_id, count(*) AS ranks, sum(rows) AS rows FROM volley.training_ranks GROUP BY 1) r \
         ON s.train_id = r.train_id \
         JOIN (SELECT train_id, min(rows) AS least, max(rows) AS most FROM volley.training_epochs GROUP BY 1) e \
         ON s.train_id = e.train_id ORDER BY s.rows_read DESC",
    );
    let read: Vec<_> = rows.iter().map(|row| row["rows_read"].as_u64()).collect();
    assert!(matches!(read[..], [Some(1200), Some(0 | 1200)]), "{rows:?}");
    for row in &rows {
        assert_eq!(
            (&row["ranks"], &row["rows"]),
            (&json!(2), &json!(1200)),
            "{row}"
        );
        // Some rows are held out, until a refit.
        let (least, most) = (row["least"].as_u64(), row["most"].as_u64());
        assert!(least > Some(800) && most <= Some(1200), "{row}");
    }
}

/// Checks that two runs of a model are drawn over each other, with what differs.
fn models_are_compared(browser: &Browser) {
    browser.look("location.hash = '#/models'");
    browser.await_look(
        "document.querySelector('a[href=\"#/model/sales\"]') != null",
        SOON,
    );
    browser.click("a[href='#/model/sales']");
    browser.await_look("document.title === 'Model sales · Volley'", SOON);
    browser.await_look("document.querySelectorAll('path.curve').length >= 2", SOON);
    for part in ["learn_rate", "0.02", "hidden_units", "[64, 32]", "default"] {
        browser.await_look(&shows(part), SOON);
    }
    let differs = "document.querySelector('[aria-label^=Differences]').innerText";
    let differs = browser.look(differs);
    assert!(!differs.as_str().unwrap().contains("epochs"), "{differs}");
}

#[test]
fn a_reader_finds_one_of_many() {
    let cluster = Cluster::start_with(Setup {
        executors: 0,
        scheduler_args: vec!["--insecure".to_owned()],
        ..Setup::default()
    });
    let Some(browser) = Browser::start(cluster.dir()) else {
        return;
    };
    browser.widen(DESK.0, DESK.1);
    browser.open(&format!("http://{}/", cluster.address()));
    browser.await_look(&shows("No executor has registered yet"), SOON);
    assert_eq!(browser.look(MANY), true);

    lists_are_drawn(&browser);
    jobs_are_filtered_sorted_and_paged(&browser);
    a_graph_of_many_stages_is_moved(&browser);
    a_curve_hides_no_point_in_silence(&browser);
    a_statement_is_copied(&browser);
    a_denied_clipboard_is_told(&browser);
    pages_have_names_and_two_themes(&browser);
    assert_eq!(browser.console(), Vec::<String>::new());
}

/// Opens a page, and waits for it.
fn open(browser: &Browser, page: &str, title: &str) {
    browser.look(&format!("location.hash = '{page}'"));
    browser.await_look(&format!("document.title === '{title} · Volley'"), SOON);
}

/// Checks that pages of a large cluster are drawn.
fn lists_are_drawn(browser: &Browser) {
    for (page, title) in [
        ("#/", "Overview"),
        ("#/jobs", "Jobs"),
        ("#/executors", "Executors"),
        ("#/job/job0000", "Job job0000"),
    ] {
        open(browser, page, title);
    }
    open(browser, "#/executors", "Executors");
    assert_eq!(
        browser.look("document.querySelectorAll('tbody tr').length"),
        100
    );
}

fn jobs_are_filtered_sorted_and_paged(browser: &Browser) {
    let first = |due: &str| {
        let cell = "document.querySelector('tbody td')?.innerText";
        browser.await_look(&format!("{cell} === '{due}'"), SOON);
    };
    let choose = |name: &str, value: &str| {
        let field = format!("document.querySelector('select[aria-label=\"{name}\"]')");
        browser.look(&format!(
            "({field}.value = '{value}', {field}.dispatchEvent(new Event('input')))"
        ));
    };
    open(browser, "#/jobs", "Jobs");
    browser.await_look(&shows("1 to 50 of 1,000"), SOON);
    first("job0000");
    browser.look("[...document.querySelectorAll('button')].find(({innerText}) => innerText === 'Next').click()");
    browser.await_look(&shows("51 to 100 of 1,000"), SOON);
    first("job0050");
    for (name, value, left) in [
        ("State", "failed", "1 to 50 of 250 (1,000 in total)"),
        ("Kind", "training", "No matching jobs"),
        ("State", "", "1 to 50 of 100 (1,000 in total)"),
        ("User", "grace", "No matching jobs"),
        ("Kind", "", "1 to 50 of 500 (1,000 in total)"),
        ("User", "", "1 to 50 of 1,000"),
        ("Time", "1", "(1,000 in total)"),
        ("Time", "", "1 to 50 of 1,000"),
    ] {
        choose(name, value);
        browser.await_look(&shows(left), SOON);
    }
    search(browser, "select 77 from");
    browser.await_look(&shows("1 to 1 of 1 (1,000 in total)"), SOON);
    first("job0077");
    search(browser, "");
    // The longest, then the shortest: by a click, then by the keyboard, which stays on the name.
    let sort =
        "[...document.querySelectorAll('button.sort')].find(({innerText}) => innerText === 'Time')";
    browser.await_look(&shows("1 to 50 of 1,000"), SOON);
    browser.look(&format!("{sort}.click()"));
    browser.await_look(
        "document.querySelector('th[aria-sort=descending]')?.innerText.startsWith('Time')",
        SOON,
    );
    browser.await_look(
        "document.querySelector('tbody td[data-name=Time]').innerText === '1 min 39 s'",
        SOON,
    );
    browser.look(&format!("{sort}.focus()"));
    browser.press("Enter");
    browser.await_look(
        "document.querySelector('th[aria-sort=ascending]')?.innerText.startsWith('Time')",
        SOON,
    );
    assert_eq!(browser.look("document.activeElement.innerText"), "Time");
    browser.look("[...document.querySelectorAll('button.sort')].find(({innerText}) => innerText === 'Submitted').click()");
}

fn a_graph_of_many_stages_is_moved(browser: &Browser) {
    open(browser, "#/job/job0000", "Job job0000");
    browser.await_look("document.querySelectorAll('.stage').length === 43", SOON);
    browser.await_look("document.querySelectorAll('.lane').length === 43", SOON);
    let part = "document.querySelector('svg.graph > g').getAttribute('transform')";
    let scale = format!("Number({part}.match(/scale\\(([0-9.]+)/)[1])");
    // It begins where it can be read: text of 12.5 pixels is 8 or more.
    assert!(
        browser.look(&scale).as_f64() >= Some(0.65),
        "{}",
        browser.look(part)
    );
    browser.look("document.querySelector('button[aria-label=\"Show the whole graph\"]').click()");
    let all = "[...document.querySelectorAll('.stage')].every((stage) => { const [a, b] = [stage.getBoundingClientRect(), \
               document.querySelector('svg.graph').getBoundingClientRect()]; \
               return a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1; })";
    assert_eq!(browser.look(all), true, "all of the graph is seen");
    let whole = browser.look(&scale).as_f64();
    browser.look("document.querySelector('svg.graph').focus()");
    for key in ["+", "+", "ArrowRight"] {
        let before = browser.look(part);
        browser.press(key);
        browser.await_look(&format!("{part} !== {before}"), SOON);
    }
    assert!(browser.look(&scale).as_f64() > whole);
    browser.press("Tab");
    assert_eq!(
        browser.look("document.activeElement.getAttribute('role')"),
        "button"
    );
    // Names of tables and keys, and every word of a long plan.
    browser.await_look(
        &shows("join sales and 43 more with stores on store, date"),
        SOON,
    );
    browser.look("document.querySelector('.stage').dispatchEvent(new Event('click'))");
    browser.await_look(&shows("column_59@59"), SOON);
    let spread = "document.querySelector('.histogram').getAttribute('aria-label')";
    let spread = browser.look(spread);
    assert_eq!(
        spread,
        "100,000 tasks: fastest 0.1 s, median 0.4 s, slowest 8.5 s"
    );
}

fn a_curve_hides_no_point_in_silence(browser: &Browser) {
    open(browser, "#/model/sales", "Model sales");
    browser.await_look("document.querySelectorAll('path.curve').length === 6", SOON);
    let press = |name: &str| {
        browser.look(&format!(
            "[...document.querySelectorAll('.tools button')].find(({{innerText}}) => innerText === '{name}').click()"
        ));
    };
    let note = "document.querySelector('.cut')?.innerText ?? ''";
    browser.await_look(
        &format!("({note}).endsWith('points are above, up to 5000.')"),
        SOON,
    );
    press("Whole range");
    browser.await_look(&format!("{note} === ''"), SOON);
    let labels =
        "[...document.querySelectorAll('figure svg text')].map(({textContent}) => textContent)";
    browser.await_look(&format!("{labels}.includes('5000')"), SOON);
    press("Log axis");
    browser.await_look(
        &format!("['1000', '100', '1'].every((tick) => {labels}.includes(tick))"),
        SOON,
    );
    let metric = "document.querySelector('select[aria-label=Metric]')";
    let offered = browser.look(&format!("[...{metric}.options].map(({{value}}) => value)"));
    let offered: Vec<_> = offered
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(
        offered,
        [
            "loss", "rate", "eval_mae", "eval_r2", "seconds", "compute", "reduce"
        ]
    );
    browser.look(&format!(
        "({metric}.value = 'eval_mae', {metric}.dispatchEvent(new Event('change', {{bubbles: true}})))"
    ));
    browser.await_look("document.querySelectorAll('path.curve').length === 3", SOON);
    // A run that is not wanted is taken away.
    browser.look("document.querySelectorAll('tbody input[type=checkbox]')[2].click()");
    browser.await_look("document.querySelectorAll('path.curve').length === 2", SOON);
    let differs =
        browser.look("document.querySelector('[aria-label^=Differences] tbody').innerText");
    assert_eq!(
        differs
            .as_str()
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["learn_rate", "0.01", "0.1"]
    );
    // Arrow keys read the curve.
    browser.look("document.querySelector('figure svg').focus()");
    browser.press("ArrowLeft");
    browser.await_look(
        "document.querySelector('.reading').innerText.startsWith('step 1,000: ')",
        SOON,
    );
    browser.look("document.activeElement.blur()");
}

fn a_statement_is_copied(browser: &Browser) {
    open(browser, "#/job/job0000", "Job job0000");
    // What is copied is seen, and the pointer does not rest on a picture, which would hold the page.
    browser.look("document.addEventListener('copy', () => { window.copied = document.activeElement.value; })");
    // Plain HTTP to another host: pages have no clipboard there.
    browser.look("void Object.defineProperty(navigator, 'clipboard', {value: undefined, configurable: true})");
    browser.await_look("document.querySelector('button.copy') != null", SOON);
    // Where the browser permits neither way, the button says so, whether the other way fails or is refused.
    for refused in ["() => false", "() => { throw new Error('not permitted'); }"] {
        browser.look(&format!("void (document.execCommand = {refused})"));
        browser.click("button.copy");
        let said = "document.querySelector('button.copy').textContent";
        browser.await_look(&format!("{said}.startsWith('Not copied')"), SOON);
        browser.await_look(&format!("{said} === 'Copy'"), SOON);
        assert_eq!(
            browser.look("document.querySelector('textarea')"),
            Value::Null
        );
    }
    browser.look("void delete document.execCommand");
    browser.click("button.copy");
    browser.await_look(
        "window.copied === document.querySelector('.statement pre').textContent",
        SOON,
    );
}

/// Checks what the button says where the user has denied the clipboard to the page.
fn a_denied_clipboard_is_told(browser: &Browser) {
    open(browser, "#/job/job0000", "Job job0000");
    browser.look("void delete navigator.clipboard");
    assert_eq!(browser.look("typeof navigator.clipboard"), "object");
    browser.deny("clipboard-write");
    browser.look("void (document.execCommand = () => false)");
    browser.await_look("document.querySelector('button.copy') != null", SOON);
    browser.click("button.copy");
    let said = "document.querySelector('button.copy').textContent";
    browser.await_look(&format!("{said}.startsWith('Not copied')"), SOON);
    browser.look("void delete document.execCommand");
}

/// Checks each page for a screen reader, and for a dark screen.
fn pages_have_names_and_two_themes(browser: &Browser) {
    for (page, title) in [
        ("#/", "Overview"),
        ("#/jobs", "Jobs"),
        ("#/job/job0000", "Job job0000"),
        ("#/executors", "Executors"),
        ("#/executor/executor-3", "Executor executor-3"),
        ("#/models", "Models"),
        ("#/model/sales", "Model sales"),
        ("#/log", "Log"),
        ("#/nowhere", "Page not found"),
    ] {
        open(browser, page, title);
        assert_eq!(browser.unnamed(), Vec::<String>::new(), "{page}");
        assert_eq!(
            browser.look("document.querySelectorAll('h1').length"),
            1,
            "{page}"
        );
        let (light, dark) = (contrast(browser, false), contrast(browser, true));
        assert!(
            light.0 > 200.0 && dark.0 < 60.0,
            "{page}: {light:?} {dark:?}"
        );
        // WCAG's least contrast of text.
        assert!(
            light.1 >= 4.5 && dark.1 >= 4.5,
            "{page}: {light:?} {dark:?}"
        );
        browser.darken(false);
    }
    // The skip link leads to the content, on the same page.
    browser.look("document.querySelector('.skip').focus()");
    browser.press("Enter");
    assert_eq!(browser.look("document.activeElement.id"), "main");
    assert_eq!(browser.look("location.hash"), "#/nowhere");
}

/// Returns the brightness of the page's ground, of 255, and the least contrast of its text to what it is on.
fn contrast(browser: &Browser, dark: bool) -> (f64, f64) {
    browser.darken(dark);
    let found = browser.look(
        "(() => { const rgb = (text) => text.match(/[0-9.]+/g).map(Number); \
         const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4) \
           .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0); \
         const ground = (node) => { for (let at = node; at; at = at.parentElement) { const c = rgb(getComputedStyle(at).backgroundColor); \
           if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; }; \
         const words = [...document.querySelectorAll('main p, main a, main td, main th, main h1, main h2, main dt, main dd, main .pill, nav a')] \
           .filter((node) => node.innerText && node.getClientRects().length); \
         const least = words.reduce((least, node) => { const [a, b] = [light(rgb(getComputedStyle(node).color)), light(ground(node))]; \
           return Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)); }, 21); \
         return [Math.max(...ground(document.body)), least]; })()",
    );
    (found[0].as_f64().unwrap(), found[1].as_f64().unwrap())
}

#[test]
fn a_user_without_the_right_cancels_nothing() {
    let guarded = Guarded::start_with(Setup {
        executors: 1,
        ..Setup::default()
    });
    let Some(browser) = Browser::start(guarded.cluster.dir()) else {
        return;
    };
    let running = guarded.spawn("alice", LONG);
    let origin = format!("http://{}/", guarded.cluster.address());
    let enter = |who: &str| {
        let token = guarded.token(who).reveal();
        format!(
            "fetch('/login', {{method: 'POST', body: new URLSearchParams({{token: '{token}'}})}})"
        )
    };
    browser.open(&origin);
    browser.await_look("document.getElementById('token') != null", SOON);
    browser.look(&format!(
        "void (document.getElementById('token').value = '{}', document.forms[0].submit())",
        guarded.token("alice").reveal()
    ));
    browser.await_look("document.title === 'Overview · Volley'", SOON);
    let link = "document.querySelector('a[href^=\"#/job/\"]')";
    let job = browser.await_look(&format!("{link}?.innerText"), SOON);
    let job = job.as_str().unwrap();
    open(&browser, &format!("#/job/{job}"), &format!("Job {job}"));
    browser.await_look("document.getElementById('cancel') != null", SOON);
    // Somebody else logs in in the browser as the button is pressed: the scheduler refuses, and the page says so.
    browser.look(&format!(
        "void (window.confirm = () => true, window.real = window.fetch, window.fetch = async (path, how) => {{ \
         if (!String(path).endsWith('/cancel')) return window.real(path, how); \
         await window.real('/login', {{method: 'POST', body: new URLSearchParams({{token: '{}'}})}}); \
         const answer = await window.real(path, how); \
         await window.real('/login', {{method: 'POST', body: new URLSearchParams({{token: '{}'}})}}); \
         return answer; }})",
        guarded.token("bob").reveal(),
        guarded.token("alice").reveal(),
    ));
    browser.click("#cancel");
    let said = browser.await_look("document.querySelector('[role=alert]')?.innerText", SOON);
    let said = said.as_str().unwrap();
    assert!(
        said.contains("belongs to another user") && said.contains("bob has the role"),
        "{said}"
    );
    browser.await_look("document.querySelector('.pill.running') != null", SOON);
    // To others, the job is unknown, and has no button.
    browser.look(&format!("{}.then(({{ok}}) => ok)", enter("bob")));
    browser.await_look(&shows("Unknown job"), SOON);
    assert_eq!(
        browser.look("document.getElementById('cancel')"),
        Value::Null
    );
    browser.look(&format!("{}.then(({{ok}}) => ok)", enter("alice")));
    browser.await_look("document.getElementById('cancel') != null", SOON);
    browser.look("void (window.fetch = window.real)");
    browser.click("#cancel");
    browser.await_look("document.querySelector('.pill.cancelled') != null", SOON);
    assert_eq!(running.wait(SOON).code, Some(1), "it was cancelled");
}

/// Query that takes hours.
const LONG: &str =
    "SELECT sum(a.value * b.value % 7) AS s FROM range(1000000) a CROSS JOIN range(1000000) b";
/// Query of all three tables, with an exchange for each.
const JOIN: &str = "SELECT s.region, w.rain, count(*) AS days, sum(x.sales) AS sales FROM sales x \
                    JOIN stores s ON x.store = s.store JOIN weather w ON x.day = w.day AND s.region = w.region \
                    WHERE x.open = 1 GROUP BY s.region, w.rain ORDER BY sales DESC";
const FEATURES: &str = "SELECT x.store, x.day, s.region, s.size, w.rain, w.degrees, x.sales \
                        FROM sales x JOIN stores s ON x.store = s.store \
                        JOIN weather w ON x.day = w.day AND s.region = w.region";

fn train(model: &str, options: &str) -> String {
    format!(
        "CREATE OR REPLACE MODEL {model} OPTIONS (model_type = 'dnn_regressor', input_label_cols = ['sales'], \
         categorical = ['store', 'region'], continuous = ['day', 'size', 'rain', 'degrees'], batch_size = 32, device = 'cpu', ranks = 2, {options}) AS {FEATURES};"
    )
}

/// Writes the sales of shops, which depend on the shop and the weather, and returns their tables.
fn write_sales(dir: &Path) -> String {
    let regions = ["north", "south", "west"];
    let mut sales = String::from("store,day,open,sales\n");
    let mut stores = String::from("store,region,size\n");
    let mut weather = String::from("day,region,rain,degrees\n");
    for store in 0..20 {
        writeln!(
            stores,
            "{store},{},{}",
            regions[store % 3],
            100 + 37 * store % 90
        )
        .unwrap();
        for day in 0..60 {
            let rain = (day * 7 + store % 3) % 4;
            let sold = 500 + 13 * store + 40 * (day % 7) - 60 * rain + (day * 31 + store * 17) % 50;
            writeln!(sales, "{store},{day},{},{sold}.0", u8::from(day % 7 != 6)).unwrap();
        }
    }
    for day in 0..60 {
        for (at, region) in regions.iter().enumerate() {
            let (rain, degrees) = ((day * 7 + at) % 4, 12.0 + f64::from(day as u32 % 20) / 2.0);
            writeln!(weather, "{day},{region},{rain},{degrees}").unwrap();
        }
    }
    let mut sql = String::new();
    for (name, columns, text) in [
        (
            "sales",
            "store BIGINT, day BIGINT, open BIGINT, sales DOUBLE",
            sales,
        ),
        (
            "stores",
            "store BIGINT, region VARCHAR, size BIGINT",
            stores,
        ),
        (
            "weather",
            "day BIGINT, region VARCHAR, rain BIGINT, degrees DOUBLE",
            weather,
        ),
    ] {
        let path = dir.join(format!("{name}.csv"));
        fs::write(&path, text).unwrap();
        write!(
            sql,
            "CREATE EXTERNAL TABLE {name} ({columns}) STORED AS CSV LOCATION '{}' \
             OPTIONS ('format.has_header' 'true');",
            path.display()
        )
        .unwrap();
    }
    sql
}

/// Types into the field of a list.
fn search(browser: &Browser, text: &str) {
    browser.look(&format!(
        "({SEARCH}.value = {}, {SEARCH}.dispatchEvent(new Event('input', {{bubbles: true}})))",
        json!(text)
    ));
}

/// Returns a script that checks whether the page contains a text.
fn shows(text: &str) -> String {
    format!(
        "document.getElementById('main').innerText.includes({})",
        json!(text)
    )
}

/// Writes a picture of a page to the docs, scrolled so far, where that is asked for.
fn picture(browser: &Browser, name: &str, page: &str, scrolled: u32) {
    let Some(images) = images() else {
        return;
    };
    browser.widen(DESK.0, DESK.1);
    browser.look(&format!("location.hash = '{page}'"));
    // It is drawn anew each second.
    thread::sleep(Duration::from_secs(4));
    browser.look(&format!("scrollTo(0, {scrolled})"));
    thread::sleep(Duration::from_secs(1));
    fs::write(images.join(format!("page-{name}.png")), browser.picture()).unwrap();
}

/// Opens a page, and checks that it does not scroll sideways.
fn fits(browser: &Browser, page: &str, title: &str) {
    open(browser, page, title);
    within(browser, page);
}

/// Checks that a page does not scroll sideways.
fn within(browser: &Browser, page: &str) {
    let widths = browser.look("[document.documentElement.scrollWidth, innerWidth]");
    let (content, window) = (widths[0].as_u64(), widths[1].as_u64());
    assert!(content <= window, "{page} is {content:?} wide on {PHONE}");
    assert_eq!(window, Some(u64::from(PHONE)), "{page}");
}
