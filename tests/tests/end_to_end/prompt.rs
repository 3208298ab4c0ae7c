//! The prompt on a terminal: keys, completion, commands, and tables within its width.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use volley_tests::{Browser, images};
use vt100::{Color, Screen};

use crate::found::{Up, errors};
use crate::terminal::{Terminal, html};

#[test]
fn a_prompt_answers_what_people_type() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join(".volleyrc"),
        "CREATE VIEW sales AS\nSELECT 7 AS amount;\n\\timing off\n",
    )
    .unwrap();
    let mut terminal = Terminal::open(dir.path(), 80, &[]);
    terminal.sees("Type help for help");
    terminal.sees("volley> ");

    let help = terminal.answers("help");
    assert!(
        help.contains(r"\timing") && help.contains("Ctrl-R"),
        "{help}"
    );
    assert!(
        terminal
            .answers(r"\h drop model")
            .contains("DROP MODEL [IF EXISTS] name [VERSION n];")
    );
    assert!(
        terminal
            .answers(r"\h model_type")
            .contains("'dnn_classifier'")
    );
    assert!(
        terminal
            .answers(r"\h ml.roc_curve")
            .contains("FROM ML.ROC_CURVE(MODEL name")
    );
    assert!(
        terminal
            .answers(r"\formt")
            .contains("did you mean \"format\"")
    );

    // Commands in the middle of a statement leave it as it is.
    terminal.press("SELECT 'a' AS one,\r");
    terminal.sees("   ...> ");
    terminal.press("\\p\r");
    terminal.sees("SELECT 'a' AS one,");
    terminal.sees("   ...> ");
    terminal.press("\r");
    terminal.sees("a statement ends with ;");
    terminal.sees("   ...> ");
    let rows = terminal.answers("2 AS two;");
    assert!(
        rows.contains("| one | two |") && rows.contains("| a   |   2 |"),
        "{rows}"
    );
    assert!(rows.contains("(1 row)\r\n"), "{rows}");
    assert!(terminal.answers(r"\g").contains("| a   |   2 |"));

    // The file of the user's own has run.
    assert!(terminal.answers(r"\d").contains("sales"));
    assert!(!terminal.answers(r"\d").contains("training_runs"));
    assert!(terminal.answers(r"\dS").contains("training_runs"));

    assert!(terminal.answers(r"\df subst").contains("substr"));
    assert!(terminal.answers(r"\l").contains("public"));
    assert!(terminal.answers(r"\jobs").contains("job_id"));
    terminal.answers(r"\set datafusion.execution.batch_size 77");
    assert!(
        terminal
            .answers(r"\set datafusion.execution.batch_size")
            .contains("| 77 ")
    );

    // Tab completes.
    terminal.press("SELECT am\t");
    terminal.press("\x15SELECT amount FROM sal\t");
    terminal.sees("FROM sales");
    assert!(terminal.answers(";").contains("|      7 |"));
    terminal.press("select * from volley.usa\t");
    terminal.sees("volley.usage");
    assert!(terminal.answers(" limit 0;").contains("(0 rows"));

    // An error leaves the prompt as it was.
    let error = terminal.answers("SELECT nothing FROM sales;");
    assert!(
        error.contains("error:") && error.contains("\n  SELECT nothing FROM sales\r\n         ^"),
        "{error}"
    );
    assert!(
        terminal
            .answers(r"\i nowhere.sql")
            .contains("cannot read nowhere.sql")
    );
    fs::write(dir.path().join("a.sql"), "SELECT 40 + 2 AS answer;").unwrap();
    assert!(terminal.answers(r"\i a.sql").contains("|     42 |"));
    terminal.quits();

    let history = fs::read_to_string(dir.path().join("history")).unwrap();
    assert!(history.contains("2 AS two;"), "{history}");
    assert!(!history.contains(r"\timing"), "{history}");
}

#[test]
fn tables_fit_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    for columns in [80_u16, 200] {
        let mut terminal = Terminal::open(dir.path(), columns, &[]);
        terminal.sees("volley> ");
        let wide: Vec<_> = (0..40).map(|n| format!("{n}23456 AS column_{n}")).collect();
        let wide = format!("SELECT {};", wide.join(", "));
        fs::write(dir.path().join("wide.sql"), &wide).unwrap();
        let shown = terminal.answers(r"\i wide.sql");
        let table: Vec<_> = shown
            .lines()
            .filter(|line| line.starts_with(['|', '+']))
            .collect();
        assert_eq!(table.len(), 5, "{shown}");
        let fits = |line: &&str| line.chars().count() <= columns.into();
        assert!(table.iter().all(fits) && table[1].contains('…'), "{shown}");
        assert!(
            table[1].contains("column_0 ") && table[1].contains("column_39 "),
            "{shown}"
        );
        assert!(shown.contains("columns left out"), "{shown}");
        terminal.answers(r"\x");
        let shown = terminal.answers(r"\i wide.sql");
        assert!(
            shown.contains("-[ row 1 ]-") && shown.contains("column_20 | 2023456"),
            "{shown}"
        );
        terminal.answers(r"\x");
        let shown = terminal.answers("SELECT * FROM range(200000);");
        assert!(
            shown.contains("(first 1,000 of 200,000 rows"),
            "{}",
            shown.lines().count()
        );
        assert_eq!(
            shown.lines().filter(|line| line.starts_with('|')).count(),
            1001
        );

        // Plans are trees within the width, and what a training takes is broken into lines.
        let fits = |shown: &str| {
            let wide = shown
                .lines()
                .map(|line| line.trim_end().chars().count())
                .max();
            wide.unwrap() <= columns.into()
        };
        let join = "SELECT a.value % 7 AS k, count(*) AS n, sum(b.value) AS s FROM range(1000) a \
                    JOIN range(500) b ON a.value = b.value WHERE a.value % 3 = 1 GROUP BY 1;";
        fs::write(dir.path().join("plan.sql"), format!("EXPLAIN {join}")).unwrap();
        let plan = terminal.answers(r"\i plan.sql");
        assert!(plan.contains("  └─ ") && fits(&plan), "{plan}");
        fs::write(
            dir.path().join("analyze.sql"),
            format!("EXPLAIN ANALYZE {join}"),
        )
        .unwrap();
        let stages = terminal.answers(r"\i analyze.sql");
        let header = stages.lines().find(|line| line.contains("stage  "));
        let header: Vec<_> = header.unwrap().split_whitespace().collect();
        let due = [
            "stage", "tasks", "rows", "bytes", "seconds", "skew", "spilled", "reads",
        ];
        assert_eq!(header, due, "{stages}");
        assert!(fits(&stages), "{stages}");
        let model = "EXPLAIN CREATE MODEL m OPTIONS (input_label_cols = ['y'])
            AS SELECT value AS x, value * 2 AS y FROM range(1000);";
        fs::write(dir.path().join("model.sql"), model).unwrap();
        let needs = terminal.answers(r"\i model.sql");
        assert!(needs.contains("a rank's memory") && fits(&needs), "{needs}");
        assert!(!needs.contains("logical_plan"), "{needs}");
        terminal.quits();
    }
}

#[test]
fn long_tables_are_paged_and_statements_edited() {
    let dir = tempfile::tempdir().unwrap();
    let editor = dir.path().join("editor");
    let edited = "SELECT 41 + 1 AS edited;";
    fs::write(
        &editor,
        format!("#!/bin/sh\ncat \"$1\" >> before\necho '{edited}' > \"$1\"\n"),
    )
    .unwrap();
    fs::set_permissions(&editor, fs::Permissions::from_mode(0o755)).unwrap();
    let environment = [
        ("PAGER", "sed 's/^/page: /'"),
        ("VISUAL", ""),
        ("EDITOR", editor.to_str().unwrap()),
    ];
    let mut terminal = Terminal::open_with(dir.path(), 80, &[], &environment);
    terminal.sees("volley> ");
    let short = terminal.answers("SELECT * FROM range(5);");
    assert!(!short.contains("page: "), "{short}");
    let long = terminal.answers("SELECT * FROM range(100);");
    assert_eq!(long.matches("page: |").count(), 101, "{long}");
    assert!(long.contains("\n(100 rows"), "{long}");

    // The last statement is edited, and the text is the next line.
    terminal.press("\\e\r");
    terminal.sees(edited);
    let rows = terminal.answers("");
    assert!(rows.contains("|     42 |"), "{rows}");
    let before = fs::read_to_string(dir.path().join("before")).unwrap();
    assert_eq!(before.trim(), "SELECT * FROM range(100);");
    fs::write(&editor, "#!/bin/sh\nexit 3\n").unwrap();
    let failed = terminal.answers(r"\e");
    assert!(failed.contains("the statement is as it was"), "{failed}");
    terminal.quits();
}

#[test]
fn rows_go_to_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut terminal = Terminal::open(dir.path(), 100, &["--quiet"]);
    terminal.sees("volley> ");
    assert!(
        terminal
            .answers(r"\format parquet")
            .contains("cannot show parquet")
    );
    for line in [
        r"\o rows.csv",
        r"\format csv",
        "SELECT CAST(NULL AS VARCHAR) AS a, '' AS b, 1 AS c;",
        r"\o rows.parquet",
        r"\format parquet",
        "SELECT value FROM range(5000);",
        r"\o",
        r"\format table",
    ] {
        let shown = terminal.answers(line);
        assert!(!shown.contains("error"), "{shown}");
    }
    let shown = terminal.answers("SELECT sum(value) AS s FROM 'rows.parquet';");
    assert!(shown.contains("| 12497500 |"), "{shown}");
    terminal.quits();
    let csv = fs::read_to_string(dir.path().join("rows.csv")).unwrap();
    assert_eq!(csv, "a,b,c\n,\"\",1\n");
}

/// Width and height of the terminal in the picture of the docs, in characters.
const PICTURED: (u16, u16) = (124, 46);
const QUERY: [&str; 3] = [
    "SELECT s.region, count(*) AS days, round(avg(x.sales), 1) AS sales, sum(x.promo) AS promo",
    "FROM sales x JOIN stores s ON x.store = s.store",
    "WHERE s.region <> 'south' GROUP BY s.region ORDER BY sales DESC;",
];
const FIRST: [&str; 3] = [
    "CREATE MODEL sales",
    "OPTIONS (input_label_cols = ['sales'], label_transform = 'ln', ranks = 2, epochs = 3, refit = false, seed = 1)",
    "AS SELECT x.*, s.region, s.size FROM sales x JOIN stores s ON x.store = s.store;",
];
const SECOND: [&str; 4] = [
    "CREATE OR REPLACE MODEL sales -- a larger network",
    "OPTIONS (input_label_cols = ['sales'], label_transform = 'ln', hidden_units = [512, 512, 256], ranks = 2,",
    "         epochs = 20, refit = false, seed = 1)",
    "AS SELECT x.*, s.region, s.size FROM sales x JOIN stores s ON x.store = s.store;",
];

/// Writes the sales of shops over a year, which depend on the shop, the day and a promotion; returns their tables.
fn write_sales(dir: &Path) -> String {
    let regions = ["north", "south", "west"];
    let mut sales = String::from("store,day,promo,sales\n");
    let mut stores = String::from("store,region,size\n");
    for store in 0..100 {
        let (region, size) = (regions[store % 3], 100 + 37 * store % 90);
        writeln!(stores, "{store},{region},{size}").unwrap();
        for day in 0..365 {
            let promo = usize::from((day / 7 + store) % 3 == 0 && day % 7 < 5);
            let noise = (day * 7919 + store * 104_729) % 97;
            let sold = 500 + 9 * store + 40 * (day % 7) + 350 * promo + size + noise;
            writeln!(sales, "{store},{day},{promo},{sold}.0").unwrap();
        }
    }
    fs::write(dir.join("sales.csv"), sales).unwrap();
    fs::write(dir.join("stores.csv"), stores).unwrap();
    let table = |name: &str, columns: &str| {
        format!(
            "CREATE EXTERNAL TABLE {name} ({columns}) STORED AS CSV LOCATION '{name}.csv' \
             OPTIONS ('format.has_header' 'true');\n"
        )
    };
    table(
        "sales",
        "store BIGINT, day BIGINT, promo BIGINT, sales DOUBLE",
    ) + &table("stores", "store BIGINT, region VARCHAR, size BIGINT")
}

/// Checks for a prompt that waits for the first line of a statement.
fn waits(screen: &Screen) -> bool {
    let contents = screen.contents();
    contents.trim_end().ends_with("\nvolley>")
}

/// Returns the colours and weights of a word's first character, where the screen shows it.
fn looks(screen: &Screen, word: &str) -> Vec<(Color, bool)> {
    let (_, columns) = screen.size();
    let rows = screen.rows(0, columns).enumerate();
    let found = rows.filter_map(|(row, text)| {
        let column = text.find(word)?;
        let cell = screen.cell(row as u16, text[..column].chars().count() as u16)?;
        Some((cell.fgcolor(), cell.bold()))
    });
    found.collect()
}

#[test]
fn a_session_shows_colours_tables_and_progress() {
    let up = Up::start(2);
    let tables = write_sales(up.dir());
    fs::write(up.dir().join(".volleyrc"), tables).unwrap();
    let mut command = up.command(&["--history", "history"]);
    command.env_remove("NO_COLOR");
    let mut terminal = Terminal::run(command, PICTURED);
    terminal.awaits("the prompt", waits);
    // Ctrl-L clears the screen of what the tables of the file said.
    terminal.press("\x0c");
    terminal.awaits("a clear screen", |screen| {
        screen.contents().trim_end() == "volley>"
    });

    terminal.types(&QUERY);
    let screen = terminal.awaits("the rows", |screen| {
        screen.contents().contains("(2 rows in ") && waits(screen)
    });
    assert!(
        screen.contents().contains("| north  |"),
        "{}",
        screen.contents()
    );
    let (keyword, text) = ((Color::Idx(4), true), (Color::Idx(2), false));
    assert_eq!(looks(&screen, "SELECT"), [keyword]);
    assert_eq!(looks(&screen, "'south'"), [text]);
    assert_eq!(looks(&screen, "s.region, count"), [(Color::Default, false)]);

    terminal.types(&FIRST);
    let screen = terminal.awaits("the model", |screen| {
        screen.contents().contains("published as version 1") && waits(screen)
    });
    // The bars are gone, and one line tells what came of it.
    let contents = screen.contents();
    assert!(!contents.contains("training ["), "{contents}");
    let told = contents
        .lines()
        .filter(|line| line.starts_with("model sales published"));
    assert_eq!(told.count(), 1, "{contents}");

    terminal.types(&SECOND);
    let is_training = |screen: &Screen| {
        let contents = screen.contents();
        let parts = [
            "training [=",
            "rank 0 on executor-",
            "rank 1 on executor-",
            "% computing",
        ];
        parts.iter().all(|part| contents.contains(part))
    };
    let screen = terminal.awaits("the progress", is_training);
    assert_eq!(looks(&screen, "-- a larger"), [(Color::Idx(8), false)]);
    assert_eq!(looks(&screen, "512, 512"), [(Color::Idx(6), false)]);
    let screen = terminal.awaits("the third epoch", |screen| {
        is_training(screen) && screen.contents().contains("epoch 3 of 20, step ")
    });
    // Lines of progress are drawn over each other: none is left behind.
    let contents = screen.contents();
    for once in ["training [", "rows/s", "rank 0 on", "rank 1 on"] {
        assert_eq!(contents.matches(once).count(), 1, "{once} in\n{contents}");
    }
    let Some(images) = images() else {
        return;
    };
    let Some(browser) = Browser::start(up.dir()) else {
        return;
    };
    let page = up.dir().join("terminal.html");
    fs::write(&page, html(&screen, "volley")).unwrap();
    browser.widen(1600, 1200);
    browser.open(&format!("file://{}", page.display()));
    let size = browser.look(
        "(() => { const box = document.body.getBoundingClientRect(); return [Math.ceil(box.width), Math.ceil(box.height)]; })()",
    );
    let [width, height] = [0, 1].map(|at| size[at].as_u64().unwrap() as u32);
    browser.widen(width, height);
    fs::write(images.join("terminal.png"), browser.picture()).unwrap();
}

#[test]
fn lists_fit_a_terminal() {
    let up = Up::start(2);
    let long = "SELECT count(*) AS the_number_of_all_rows_of_the_range FROM range(1000) AS numbers WHERE value % 7 <> 3";
    let model = "CREATE MODEL m OPTIONS (input_label_cols = ['y'], ranks = 2, epochs = 1) \
                 AS SELECT value AS x, value * 2 AS y FROM range(1000)";
    for sql in [long, model] {
        let ran = up.volley(&["-c", sql]);
        assert!(ran.status.success(), "{}", errors(&ran));
    }
    let jobs = up.volley(&["jobs", "--format", "csv"]);
    let jobs = String::from_utf8(jobs.stdout).unwrap();
    let ids: Vec<_> = jobs
        .lines()
        .skip(1)
        .map(|line| &line[..line.find(',').unwrap()])
        .collect();
    assert!(ids.len() >= 2, "{jobs}");
    for columns in [80, 160] {
        let shown = |arguments: &[&str]| {
            let shown = Terminal::run(up.command(arguments), (columns, 40)).ends();
            let rows: Vec<_> = shown
                .lines()
                .filter(|line| line.starts_with(['|', '+']))
                .collect();
            assert!(rows.len() > 4, "{shown}");
            let fits = |line: &&&str| line.chars().count() <= columns.into();
            assert_eq!(rows.iter().find(|line| !fits(line)), None, "{shown}");
            // No column is left out.
            assert!(!rows[1].contains('…'), "{shown}");
            shown
        };
        let list = shown(&["jobs"]);
        for whole in ids
            .iter()
            .copied()
            .chain(["| succeeded | ", "| age", "| SELECT count(*) AS"])
        {
            assert!(list.contains(whole), "{whole} in\n{list}");
        }
        let list = shown(&["executors"]);
        for whole in [
            "| executor-0  | 127.0.0.1:",
            "| executor-1  | ",
            "| 1 of 1 | cpu",
        ] {
            assert!(list.contains(whole), "{whole} in\n{list}");
        }
        let list = shown(&["store", "check"]);
        for whole in ["| m     | version 1, current |", "Z | "] {
            assert!(list.contains(whole), "{whole} in\n{list}");
        }
    }
}
