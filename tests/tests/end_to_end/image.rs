//! The image of `deploy/Dockerfile`, without an image builder: its root is assembled as the file says, from this build's programs
//! and the libraries that the base has, and the cluster of `deploy/kubernetes` runs in it, each process in namespaces of its own, as
//! in a container. Neither the base's own layers nor the release build of the file are tested.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use volley_proto::access::{Role, Token};
use volley_tests::{Client, Process, Run, binary, eventually};

use crate::deploy::{SOON, is_there, root};
use crate::{query_and_train, write_table};

/// User and group of the base's tag `nonroot`.
const NONROOT: u32 = 65532;
/// Users of the base.
const USERS: &str = "\
root:x:0:0:root:/root:/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin
nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin
";
/// Libraries of Debian's packages libc6 and libgcc-s1, without the loader. The base also has OpenSSL, libgomp and libstdc++, which
/// no program is to need.
const LIBRARIES: [&str; 7] = [
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
];
/// Releases of Debian by their names in the tags of Rust's images. Programs run with the C library that they are linked with.
const RELEASES: [(&str, &str); 2] = [("bookworm", "debian12"), ("trixie", "debian13")];
/// Search path of the base.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Mounts what a container has, and executes a command. Arguments: the root; the folder, place and mode of each volume; `--`; the
/// command.
const CONTAINER: &str = r#"
set -e
root=$1; shift
for device in full null random urandom zero; do : > "$root/dev/$device"; done
mount --bind "$root" "$root"
mount -o remount,bind,ro,nosuid,nodev "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
for device in full null random urandom zero; do mount --bind "/dev/$device" "$root/dev/$device"; done
while [ "$1" != -- ]; do
  mount -o "bind,nosuid,nodev,$3" "$1" "$root$2"
  shift 3
done
shift
exec "$@"
"#;

/// Image that the Dockerfile describes.
struct Image {
    /// Folder of the program, with a slash at its end.
    folder: String,
    /// Other names of the program, each of which is another program.
    names: Vec<String>,
}

/// Program of the image.
const PROGRAM: &str = "volley";

impl Image {
    /// Reads the Dockerfile.
    ///
    /// # Panics
    /// When it has other instructions than a build and one layer of a program, or does not fit together.
    fn read() -> Self {
        let text = fs::read_to_string(root().join("deploy/Dockerfile")).unwrap();
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let instructions: Vec<_> = lines
            .map(|line| line.split_once(' ').expect(line))
            .collect();
        let [
            ("ARG", base),
            ("FROM", build),
            ("WORKDIR", work),
            ("COPY", ". ."),
            ("RUN", "cargo build --release --package volley --bin volley --locked"),
            ("RUN", collects),
            ("FROM", "${BASE}"),
            ("COPY", copied),
            ("ENTRYPOINT", entrypoint),
        ] = instructions[..]
        else {
            panic!("the test knows other instructions: {instructions:#?}")
        };
        let base = base.strip_prefix("BASE=gcr.io/distroless/cc-").unwrap();
        let (release, tag) = base.split_once(':').unwrap();
        assert_eq!(tag, "nonroot");
        let build = build.strip_prefix("rust:1-").unwrap();
        let name = build.strip_suffix(" AS build").unwrap();
        assert!(RELEASES.contains(&(name, release)), "{name}, {release}");
        assert_eq!(work, "/volley");
        let (collected, names) = collects
            .split_once(" && cp target/release/volley /programs && ")
            .expect(collects);
        assert_eq!(collected, "mkdir /programs");
        let names = names.split(" && ").map(|link| {
            let name = link.strip_prefix("ln -s volley /programs/").expect(link);
            name.to_owned()
        });
        let folder = copied.strip_prefix("--from=build /programs/ ").unwrap();
        assert_eq!(entrypoint, format!("[\"{folder}{PROGRAM}\"]"));
        Self {
            folder: folder.to_owned(),
            names: names.collect(),
        }
    }

    /// Puts the program and the base's part that it needs below a folder. There is nothing else, such as a shell.
    fn assemble(&self, root: &Path) {
        for folder in ["dev", "etc", "home/nonroot", "proc", "sys", "tmp"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::write(root.join("etc/passwd"), USERS).unwrap();
        let built = binary(PROGRAM);
        for library in libraries(&built) {
            let copy = below(root, &library);
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(&library, copy).unwrap();
        }
        let folder = below(root, Path::new(&self.folder));
        fs::create_dir_all(&folder).unwrap();
        let copy = folder.join(PROGRAM);
        // A program of a debug build is large.
        if fs::hard_link(&built, &copy).is_err() {
            fs::copy(&built, &copy).unwrap();
        }
        for name in &self.names {
            symlink(PROGRAM, folder.join(name)).unwrap();
        }
    }
}

/// Returns an absolute path below another root.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap())
}

/// Returns the library in a line of ldd's, or nothing for the kernel's own page. An error is the name of a library that the image
/// does not have.
fn library(line: &str) -> Result<Option<PathBuf>, String> {
    // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`; the loader's path stands alone.
    let (name, path) = line.split_once(" => ").unwrap_or((line, line));
    let [name, path] = [name, path].map(|part| part.split(" (").next().unwrap_or(part).trim());
    let name = Path::new(name).file_name().and_then(OsStr::to_str);
    match name.unwrap_or_default() {
        "linux-vdso.so.1" => Ok(None),
        name if name.starts_with("ld-linux-") || LIBRARIES.contains(&name) => {
            Ok(Some(PathBuf::from(path)))
        }
        _ => Err(line.trim().to_owned()),
    }
}

/// Returns the libraries that a program needs, and those that these need.
///
/// # Panics
/// When the image does not have one.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let mut ldd = Command::new("ldd");
    let output = ldd.arg(program).env_remove("LD_LIBRARY_PATH").output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let found = text.lines().filter_map(|line| {
        library(line).unwrap_or_else(|missing| {
            let program = program.display();
            panic!("{program} needs a library that the image does not have: {missing}")
        })
    });
    found.collect()
}

#[test]
fn programs_need_only_libraries_of_the_image() {
    let openssl = "\tlibssl.so.3 => /lib/x86_64-linux-gnu/libssl.so.3 (0x00007f0000000000)";
    assert_eq!(library(openssl), Err(openssl.trim().to_owned()));
    assert_eq!(library("\tlinux-vdso.so.1 (0x00007f0000000000)"), Ok(None));
    let loader = "/lib64/ld-linux-x86-64.so.2";
    let line = format!("\t{loader} (0x00007f0000000000)");
    assert_eq!(library(&line), Ok(Some(PathBuf::from(loader))));
    if !is_there("ldd") {
        return;
    }
    let libraries = libraries(&binary(PROGRAM));
    let mut names = libraries.iter().filter_map(|path| path.file_name());
    assert!(names.any(|name| name == "libc.so.6"), "{libraries:?}");
}

/// Checks whether this is root. Others are root in a namespace of users, in which their files are [`NONROOT`]'s.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Returns a command that executes its further arguments in new namespaces of mounts, processes and shared memory.
pub(crate) fn namespaces() -> Command {
    let mut unshare = Command::new("unshare");
    unshare
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", "/home/nonroot");
    if !is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare.args(["--mount", "--pid", "--ipc", "--fork"]);
    unshare
}

/// Folder of a host that is mounted in a container.
struct Volume {
    folder: PathBuf,
    place: String,
    read_only: bool,
}

/// Host of containers of one image.
struct Host {
    image: Image,
    dir: TempDir,
}

impl Host {
    fn new() -> Self {
        let (image, dir) = (Image::read(), tempfile::tempdir().unwrap());
        image.assemble(&dir.path().join("root"));
        Self { image, dir }
    }

    /// Returns a volume that the image's user can write to, at a place in a container.
    fn volume(&self, name: &str, place: &str) -> Volume {
        let folder = below(&self.dir.path().join(name), Path::new(place));
        fs::create_dir_all(&folder).unwrap();
        if is_root() {
            chown(&folder, Some(NONROOT), Some(NONROOT)).unwrap();
        }
        Volume {
            folder,
            place: place.to_owned(),
            read_only: false,
        }
    }

    /// Returns the command for a program of the image in a container, as the image's user and without privileges.
    fn command(&self, volumes: &[Volume], program: &str) -> Command {
        let root = self.dir.path().join("root");
        let mut command = namespaces();
        command.args(["sh", "-c", CONTAINER, "sh"]).arg(&root);
        for volume in volumes {
            fs::create_dir_all(below(&root, Path::new(&volume.place))).unwrap();
            let mode = if volume.read_only { "ro" } else { "rw" };
            command
                .arg(&volume.folder)
                .args([volume.place.as_str(), mode]);
        }
        command.args(["--", "setpriv", "--no-new-privs"]);
        match is_root() {
            true => command
                .args(["chroot", "--userspec=65532:65532", "--groups="])
                .arg(&root),
            false => command
                .args(["unshare", "--user", "--map-user=65532"])
                .args(["--map-group=65532", "--wd=/", "--root"])
                .arg(&root),
        };
        command.arg(program);
        command
    }

    /// Runs a program of the image to its end.
    fn run(&self, volumes: &[Volume], program: &str, args: &[&str], token: Option<&Token>) -> Run {
        let mut command = self.command(volumes, &format!("{}{program}", self.image.folder));
        command.args(args);
        if let Some(token) = token {
            command.env("VOLLEY_TOKEN", token.reveal());
        }
        let [out, log] = ["out", "log"].map(|name| self.dir.path().join(format!("client.{name}")));
        Client::start(&mut command, out, log).wait(SOON)
    }

    /// Returns the volume of secrets, which [`make_secrets`](Self::make_secrets) fills, at a place in a container.
    fn secrets(&self, place: &str) -> Volume {
        Volume {
            folder: self.dir.path().join("secrets"),
            place: place.to_owned(),
            read_only: true,
        }
    }

    /// Makes the files of the secrets of `deploy/kubernetes`, with `volley` in a container for certificates. Returns a token
    /// for clients.
    fn make_secrets(&self) -> Token {
        let make = |out: &str| {
            let work = [self.volume("certs", "/work")];
            let args = ["cluster", "certs", "--hosts", "127.0.0.1", "--out", out];
            self.run(&work, "volley", &args, None)
        };
        // The root is read-only.
        make("/tmp/certs").error();
        let made = make("/work/certs");
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        let certs = self.dir.path().join("certs/work/certs");
        if is_root() {
            let made = fs::metadata(certs.join("ca.key")).unwrap();
            assert_eq!((made.uid(), made.gid()), (NONROOT, NONROOT));
        }
        let [client, join] = [(); 2].map(|()| Token::generate());
        let users = [
            ("alice", Role::Administer, &client),
            ("executors", Role::Executor, &join),
        ];
        let tokens = users.map(|(name, role, token)| format!("{name} {role} {}\n", token.hash()));
        let made = |name: &str| fs::read(certs.join(name)).unwrap();
        let files = [
            ("tokens", tokens.concat().into_bytes()),
            ("join", join.reveal().as_bytes().to_vec()),
            ("ca.pem", made("ca.pem")),
            ("cert.pem", made("127.0.0.1.pem")),
            ("key.pem", made("127.0.0.1.key")),
        ];
        let folder = self.dir.path().join("secrets");
        fs::create_dir(&folder).unwrap();
        for (name, content) in files {
            let path = folder.join(name);
            fs::write(&path, content).unwrap();
            // As with `defaultMode` of the secret's volume and `fsGroup` of its pod.
            if is_root() {
                chown(&path, Some(0), Some(NONROOT)).unwrap();
            }
            fs::set_permissions(&path, Permissions::from_mode(0o440)).unwrap();
        }
        client
    }

    /// Starts the container of a manifest of `deploy/kubernetes` as a pod of this name. It differs in its addresses.
    fn start(&self, manifest: &str, pod: &str, scheduler: &str, env: &[(&str, &str)]) -> Container {
        let path = root().join("deploy/kubernetes").join(manifest);
        let text = fs::read_to_string(path).unwrap();
        let lines = || text.lines().map(str::trim);
        let mut programs =
            lines().filter_map(|line| line.strip_prefix("command: [\"")?.strip_suffix("\"]"));
        let program = programs.next().unwrap();
        let mounts = lines().filter_map(|line| {
            let (_, rest) = line.split_once("mountPath: ")?;
            let place = rest.split([',', ' ']).next()?;
            Some((place, line.contains("readOnly: true")))
        });
        let mut volumes: Vec<_> = mounts
            .map(|(place, read_only)| match read_only {
                true => self.secrets(place),
                false => self.volume(pod, place),
            })
            .collect();
        assert!(volumes.len() > 1, "{manifest}");
        // In place of a bucket.
        volumes.push(self.volume("shared", "/data"));
        let options = lines().filter_map(|line| line.strip_prefix("- --"));
        let options = options.filter_map(|option| {
            let (name, value) = option.split_once('=').expect(option);
            let value = match name {
                // All containers have one host's ports.
                "ports" => return None,
                "advertise-host" => "127.0.0.1",
                "scheduler" => scheduler,
                "bind" | "metrics" if value.contains(':') => "127.0.0.1:0",
                "bind" => "127.0.0.1",
                _ => value,
            };
            Some(format!("--{name}={value}"))
        });
        let mut command = self.command(&volumes, program);
        command.args(options).envs(env.iter().copied());
        if manifest == "scheduler.yaml" {
            command.arg("--address-file=/tmp/address");
        }
        let log = self.dir.path().join(format!("{pod}.log"));
        Container(Process::start(&mut command, &log))
    }
}

/// Container of a program that serves; killed when dropped.
struct Container(Process);

impl Container {
    /// Sends a signal to the program: the only child of `unshare`, and process 1 of its namespace.
    fn signal(&self, signal: Signal) {
        let unshare = self.0.id();
        let children = format!("/proc/{unshare}/task/{unshare}/children");
        let children = fs::read_to_string(children).unwrap_or_default();
        for child in children.split_whitespace() {
            // It may have ended by itself.
            kill(Pid::from_raw(child.parse().unwrap()), signal).ok();
        }
    }

    /// Checks that the program ends with success when it is told to end.
    fn ends(mut self) {
        self.signal(Signal::SIGTERM);
        let status = eventually("a container to end", SOON, || self.0.ended());
        assert!(status.success(), "{status}: {}", self.0.output());
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

#[test]
fn the_cluster_for_kubernetes_runs_in_the_image() {
    if !(is_there("ldd") && is_there("unshare")) {
        return;
    }
    let host = Host::new();
    let names = host.image.names.iter().map(String::as_str);
    for program in names.chain([PROGRAM]) {
        let run = host.run(&[], program, &["--version"], None);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        let expected = format!("{program} {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!(run.stdout, expected);
    }
    let token = host.make_secrets();
    let record = [
        ("VOLLEY_RECORD", "/tmp/record"),
        ("VOLLEY_STATE_DIR", "/tmp/volley"),
    ];
    let scheduler = host.start("scheduler.yaml", "scheduler-0", "", &record);
    let address = eventually("the scheduler's address", SOON, || {
        fs::read_to_string(host.dir.path().join("scheduler-0/tmp/address")).ok()
    });
    let metrics = Token::generate().hash().to_string();
    let metrics = [("VOLLEY_EXECUTOR_METRICS_TOKEN", &*metrics)];
    // Both have process 1 and this host's boot id, as pods of one node have.
    let executors = ["executors-0", "executors-1"]
        .map(|pod| host.start("executors.yaml", pod, &address, &metrics));
    let volley = |command: &[&str], args: &[&str]| {
        let volumes = [host.volume("shared", "/data"), host.secrets("/etc/volley")];
        let common = ["--scheduler", &address, "--tls-ca", "/etc/volley/ca.pem"];
        let args = [command, &common, &["--format", "json", "--quiet"], args].concat();
        host.run(&volumes, "volley", &args, Some(&token))
    };
    eventually("the executors to register", SOON, || {
        let run = volley(&["executors"], &[]);
        (run.rows().len() == executors.len()).then_some(())
    });
    let data = host.dir.path().join("shared/data");
    let table = write_table(&data, 300);
    let table = table.replace(&*data.display().to_string(), "/data");
    query_and_train(&table, executors.len(), |sql| {
        volley(&[], &["--store", "/data/store", "-c", sql]).rows()
    });
    for executor in executors {
        executor.ends();
    }
    scheduler.ends();
}
