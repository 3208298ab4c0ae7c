//! Defaults of options: the user's file, the environment, and the command line.

use std::fs;
use std::process::Command;

use volley_tests::binary;

#[test]
fn the_environment_wins_over_the_file_and_an_option_over_both() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("models")).unwrap();
    let config = dir.path().join("config.toml");
    fs::write(&config, "format = \"markdown\"\nstore = \"models\"\n").unwrap();
    let header = |environment: Option<&str>, option: Option<&str>| {
        let mut command = Command::new(binary("volley"));
        command
            .args(["store", "check"])
            .current_dir(dir.path())
            .env("VOLLEY_CONFIG", &config);
        if let Some(format) = environment {
            command.env("VOLLEY_FORMAT", format);
        }
        if let Some(format) = option {
            command.args(["--format", format]);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let rows = String::from_utf8(output.stdout).unwrap();
        rows.lines().next().unwrap().to_owned()
    };
    assert!(header(None, None).starts_with("| "));
    let tsv = header(Some("tsv"), None);
    assert!(tsv.contains('\t'), "{tsv}");
    let csv = header(Some("tsv"), Some("csv"));
    assert_eq!(csv, tsv.replace('\t', ","));
}
