//! The web page, in a browser: its drawing of running work, and that it needs nothing but the scheduler.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use volley_tests::{Browser, Cluster, Setup};

use crate::{create_model, write_table};

const SOON: Duration = Duration::from_secs(60);
/// Width of a phone in CSS pixels.
const PHONE: u32 = 390;

/// Number of points in the first curve on the page.
const POINTS: &str =
    "(document.querySelector('path.curve')?.getAttribute('d').match(/[ML]/g) ?? []).length";

#[test]
fn a_browser_shows_the_work() {
    // Without logins: the form is tested elsewhere.
    let cluster = Cluster::start_with(Setup {
        executors: 2,
        scheduler_args: vec!["--insecure".to_owned()],
        ..Setup::default()
    });
    let Some(browser) = Browser::start(cluster.dir()) else {
        return;
    };
    let table = write_table(cluster.dir(), 400);
    let train = |name: &str, options: &str| {
        let model = create_model(name, options);
        cluster.run(&["--format", "json", "-c", &table, "-c", &model])
    };
    let origin = format!("http://{}/", cluster.address());
    browser.open(&origin);
    for executor in ["executor-0", "executor-1"] {
        browser.await_look(&shows(executor), SOON);
    }

    thread::scope(|scope| {
        let training = scope.spawn(|| train("long", ", ranks = 2, epochs = 100000"));
        // From the overview to the job, as a reader would go.
        let link = "document.querySelector('a[href^=\"#/job/\"]')";
        let job = browser.await_look(&format!("{link}?.hash.slice('#/job/'.length)"), SOON);
        let job = job.as_str().unwrap();
        browser.look(&format!("{link}.click()"));
        browser.await_look(&shows(&format!("Job {job}")), SOON);
        browser.await_look(
            "document.querySelector('.stage.training.running') != null",
            SOON,
        );
        browser.await_look(
            "document.querySelectorAll('.stage .rank').length === 2",
            SOON,
        );
        browser.await_look("document.querySelectorAll('.split dt').length === 2", SOON);
        // The whole statement, which lists of jobs cut.
        let statement = "document.querySelector('.statement pre').textContent";
        browser.await_look(&format!("{statement}.includes('epochs = 100000')"), SOON);
        let first = browser.await_look(&format!("{POINTS} > 1 && {POINTS}"), SOON);
        browser.await_look(&format!("{POINTS} > {first}"), SOON);

        picture(&browser, "job", &format!("#/job/{job}"));
        picture(&browser, "overview", "#/");
        browser.narrow(PHONE);
        for (page, title) in [
            ("#/", "Overview"),
            ("#/jobs", "Jobs"),
            ("#/models", "Models"),
            ("#/log", "Log"),
        ] {
            fits(&browser, page, title);
        }
        fits(&browser, &format!("#/job/{job}"), &format!("Job {job}"));
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
            let field = "document.querySelector('.filters input')";
            browser.look(&format!(
                "({field}.value = '{typed}', {field}.dispatchEvent(new Event('input')))"
            ));
            browser.await_look(&shows(found), SOON);
        }
        assert_eq!(training.join().unwrap().code, Some(1), "it was cancelled");
    });

    let trained = train("short", ", ranks = 2, epochs = 2");
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    fits(&browser, "#/models", "Models");
    let row = "[...document.querySelectorAll('td')].some((cell) => cell.textContent === 'short')";
    browser.await_look(row, SOON);
    fs::write(cluster.dir().join("table.sql"), &table).unwrap();
    let rows = "SELECT * FROM t";
    let report = cluster.report(&[
        "short",
        "-f",
        "table.sql",
        "--rows",
        rows,
        "--by",
        "k",
        "--publish",
    ]);
    assert_eq!(report.code, Some(0), "{}", report.stderr);
    let link = "document.querySelector('a[href^=\"/reports/short/1/\"]') != null";
    browser.await_look(link, SOON);

    browser.look("location.hash = '#/log'");
    browser.await_look(
        "document.querySelector('.log a[href^=\"#/job/\"]') != null",
        SOON,
    );
    let field = "document.querySelector('.filters input')";
    browser.look(&format!(
        "({field}.value = 'no such line', {field}.dispatchEvent(new Event('input', {{bubbles: true}})))"
    ));
    browser.await_look(&shows("No matching lines"), SOON);
    picture(&browser, "models", "#/models");
    picture(&browser, "jobs", "#/jobs");

    assert_eq!(browser.console(), Vec::<String>::new());
    let requests = browser.requests();
    assert!(requests.len() > 10, "{requests:?}");
    let elsewhere = requests.iter().find(|url| !url.starts_with(&origin));
    assert_eq!(elsewhere, None);

    // The report draws without a scheduler, on a phone too.
    browser.open(&format!(
        "file://{}",
        cluster.dir().join("short.html").display()
    ));
    browser.await_look("document.querySelectorAll('svg').length > 4", SOON);
    let color = "getComputedStyle(document.querySelector('svg .fill.one')).fill";
    assert_eq!(browser.look(color), "rgb(31, 95, 174)");
    within(&browser, "the report");
    assert_eq!(browser.console(), Vec::<String>::new());
}

/// Returns a script that checks whether the page contains a text.
fn shows(text: &str) -> String {
    format!("document.getElementById('main').innerText.includes('{text}')")
}

/// Writes a picture of a page to the docs, where that is asked for.
fn picture(browser: &Browser, name: &str, page: &str) {
    if std::env::var_os("VOLLEY_UPDATE_DOCS").is_none() {
        return;
    }
    browser.widen(1200, 1100);
    browser.look(&format!("location.hash = '{page}'"));
    // It is drawn anew each second.
    thread::sleep(Duration::from_secs(4));
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images");
    fs::create_dir_all(&images).unwrap();
    fs::write(images.join(format!("page-{name}.png")), browser.picture()).unwrap();
    browser.narrow(PHONE);
}

/// Opens a page, and checks that it does not scroll sideways.
fn fits(browser: &Browser, page: &str, title: &str) {
    browser.look(&format!("location.hash = '{page}'"));
    browser.await_look(&format!("document.title === '{title} · Volley'"), SOON);
    within(browser, page);
}

/// Checks that a page does not scroll sideways.
fn within(browser: &Browser, page: &str) {
    let widths = browser.look("[document.documentElement.scrollWidth, innerWidth]");
    let (content, window) = (widths[0].as_u64(), widths[1].as_u64());
    assert!(content <= window, "{page} is {content:?} wide on {PHONE}");
    assert_eq!(window, Some(u64::from(PHONE)), "{page}");
}
