//! Which driver is behind the shim, and that programs get the shim whichever way they ask.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::rig::{MIB, Rig, library, said};

/// A library that answers as the toolkit's stub does.
const STUB: &str = "int cuInit(unsigned flags) { return 34; }\nint cuDriverGetVersion(int *version) { return 34; }\n";
/// A library that does not survive being loaded.
const BROKEN: &str = "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }\n\
                      int cuDriverGetVersion(int *version) { return 0; }\n";

/// A library of the driver's name in a folder of its own.
fn decoy(rig: &Rig, folder: &str, source: &str) {
    fs::create_dir_all(rig.path(folder)).unwrap();
    fs::write(rig.path("decoy.c"), source).unwrap();
    rig.compile(&format!("{folder}/libcuda.so.1"), &["decoy.c", "-shared", "-fPIC"]);
}

/// `gpuheap run` of the client that takes pieces of 10 MiB, with these folders searched first.
fn held(rig: &Rig, folders: &[&str], options: &[&str]) -> (Option<i32>, String, String) {
    let client = rig.client();
    let mut command = rig.run(options, &[client.to_str().unwrap(), "hold", "10485760"]);
    let folders: Vec<String> = folders.iter().map(|folder| rig.path(folder).display().to_string()).collect();
    said(command.env("LD_LIBRARY_PATH", folders.join(":")))
}

#[test]
fn stubs_and_what_is_no_driver_are_passed_over() {
    let rig = Rig::new();
    decoy(&rig, "lib64/stubs", STUB);
    decoy(&rig, "other", STUB);
    decoy(&rig, "broken", BROKEN);
    fs::create_dir(rig.path("text")).unwrap();
    fs::write(rig.path("text/libcuda.so.1"), "INPUT(libcuda.so.2)").unwrap();
    let folders = ["lib64/stubs", "other", "broken", "text", "driver"];
    let (code, output, error) = held(&rig, &folders, &["--budget", "25MiB"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(output.ends_with(&format!("held 2, then 2; free {} of {}\n", 5 * MIB, 25 * MIB)), "{output}");
}

#[test]
fn without_a_driver_it_says_what_was_found_and_where_it_looked() {
    let rig = Rig::new();
    decoy(&rig, "lib64/stubs", STUB);
    decoy(&rig, "other", STUB);
    decoy(&rig, "broken", BROKEN);
    fs::create_dir(rig.path("empty")).unwrap();
    if library_of_this_machine() {
        eprintln!("skipped: this machine has a driver");
        return;
    }
    let (code, output, error) = held(&rig, &["lib64/stubs", "other", "broken", "empty"], &[]);
    assert_eq!((code, output.as_str()), (Some(2), ""));
    let path = |name: &str| rig.path(name).display().to_string();
    let expected = format!(
        "error: Failed to find the CUDA driver `libcuda.so.1`\n  \
         `{}/libcuda.so.1`: it is the CUDA toolkit's stub, which programs are linked with\n  \
         `{}/libcuda.so.1`: it is the CUDA toolkit's stub, which programs are linked with\n  \
         `{}/libcuda.so.1`: loading it ended a process by signal 6\n\nhint: ",
        path("lib64/stubs"),
        path("other"),
        path("broken")
    );
    assert!(error.starts_with(&expected), "{error}");
    assert!(error.contains(&format!(". Searched:\n  {}\n  /usr/lib", path("empty"))), "{error}");
    assert_eq!(rig.runs().len(), 0, "nothing is left");
}

/// Whether a driver would be found whatever the search path is.
fn library_of_this_machine() -> bool {
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/usr/local/cuda/compat"]
        .iter()
        .any(|folder| Path::new(folder).join("libcuda.so.1").exists())
}

#[test]
fn programs_get_the_shim_by_either_name_and_by_either_way_to_its_functions() {
    let rig = Rig::new();
    let client = rig.client();
    for (name, asks) in [("libcuda.so.1", false), ("libcuda.so", false), ("libcuda.so", true), ("libcuda.so.1", true)] {
        let mut command = rig.run(&["--budget", "25MiB"], &[client.to_str().unwrap(), "hold", "10485760"]);
        if asks {
            command.env("CLIENT_ASKS", "1");
        }
        let (code, output, error) = said(command.env("CLIENT_LIBRARY", name));
        assert_eq!(code, Some(0), "{name} {asks}: {error}");
        assert!(output.contains("held 2, then 2;"), "{name} {asks}: {output}");
    }
}

/// The driver loads libraries of its own by their names, from its folder.
#[test]
fn a_driver_in_a_folder_of_its_own_finds_what_lies_beside_it() {
    let rig = Rig::new();
    fs::write(rig.path("beside.c"), "int beside(void) { return 42; }\n").unwrap();
    rig.compile("driver/libbeside.so.1", &["beside.c", "-shared", "-fPIC"]);
    let program = "#include <dlfcn.h>\nint main(void) { void *cuda = dlopen(\"libcuda.so.1\", RTLD_NOW), *other = \
                   dlopen(\"libbeside.so.1\", RTLD_NOW);\nreturn cuda && other ? ((int (*)(void))dlsym(other, \
                   \"beside\"))() : 1; }\n";
    fs::write(rig.path("program.c"), program).unwrap();
    let program = rig.compile("program", &["program.c", "-ldl"]);
    let (code, _, error) = said(&mut rig.run(&[], &[program.to_str().unwrap()]));
    assert_eq!(code, Some(42), "{error}");
}

#[test]
fn a_program_that_would_get_another_driver_first_is_named() {
    let rig = Rig::new();
    let client = rig.client();
    fs::create_dir(rig.path("compat")).unwrap();
    symlink(library("libgpuheap_fakecuda.so"), rig.path("compat/libcuda.so.1")).unwrap();
    let linked = |name: &str, tags: &str, path: &str| {
        let options = ["client.c", "-ldl", "-Wl,-rpath"];
        let path = format!("-Wl,{path}");
        rig.compile(name, &[&options[..], &[&path, tags]].concat())
    };
    let first = linked("first", "-Wl,--disable-new-dtags", "$ORIGIN/compat");
    let (code, output, error) =
        said(&mut rig.run(&["--budget", "25MiB"], &[first.to_str().unwrap(), "hold", "10485760"]));
    assert_eq!(code, Some(0));
    assert!(output.contains("held 102,"), "it is as the loader says: {output}");
    let expected = format!(
        "gpuheap: `{}` looks for libraries in folders of its own first (DT_RPATH) and gets `{}`: what it allocates is \
         neither counted nor limited\ngpuheap: no process of this run used CUDA through gpuheap\n",
        first.display(),
        rig.path("compat/libcuda.so.1").display()
    );
    assert_eq!(error, expected);
    // Through a script it is the same.
    fs::write(rig.path("script"), format!("#!{}\n", first.display())).unwrap();
    assert!(Command::new("chmod").arg("+x").arg(rig.path("script")).status().unwrap().success());
    let (_, _, error) = said(&mut rig.run(&[], &["./script"]));
    assert!(error.contains("(DT_RPATH)"), "{error}");
    // Folders of DT_RUNPATH come after ours.
    let later = linked("later", "-Wl,--enable-new-dtags", "$ORIGIN/compat");
    let (_, output, error) = said(&mut rig.run(&["--budget", "25MiB"], &[later.to_str().unwrap(), "hold", "10485760"]));
    assert!(output.contains("held 2,") && !error.contains("RPATH"), "{output}{error}");
    assert!(client.exists());
}

/// What the documentation says of programs that throw the environment away.
#[test]
fn a_child_with_an_environment_of_its_own_is_not_seen() {
    let rig = Rig::new();
    let client = rig.client();
    let path = format!("LD_LIBRARY_PATH={}", rig.path("driver").display());
    let program = ["env", "-i", &path, client.to_str().unwrap(), "hold", "10485760"];
    let (code, output, error) = said(&mut rig.run(&["--budget", "25MiB"], &program));
    assert_eq!(code, Some(0));
    assert!(output.contains("held 102,"), "{output}");
    assert_eq!(error, "gpuheap: no process of this run used CUDA through gpuheap\n");
}

#[test]
fn the_library_is_the_one_that_came_with_the_command_or_the_one_that_is_named() {
    let rig = Rig::new();
    let (code, _, error) = said(rig.run(&[], &["true"]).env("GPUHEAP_SHIM", rig.path("driver/libcuda.so.1")));
    assert_eq!(code, Some(2));
    let expected = format!(
        "error: `{}`, which `GPUHEAP_SHIM` names, is not gpuheap's library\n\nhint: unset it to take the one that came \
         with this command\n",
        rig.path("driver/libcuda.so.1").display()
    );
    assert_eq!(error, expected);
    fs::copy(library("libgpuheap_shim.so"), rig.path("named.so")).unwrap();
    let named = said(rig.run(&[], &["true"]).env("GPUHEAP_SHIM", rig.path("named.so")));
    assert_eq!(named, (Some(0), String::new(), String::new()));
    // One of another version, which would count where nobody looks.
    fs::write(
        rig.path("other.c"),
        "unsigned gpuheap_shim_version(void) { return 1; }\nint cuDriverGetVersion(int *version) { return 0; }\n",
    )
    .unwrap();
    let other = rig.compile("other.so", &["other.c", "-shared", "-fPIC"]);
    let (code, _, error) = said(rig.run(&[], &["true"]).env("GPUHEAP_SHIM", other));
    assert_eq!(code, Some(2));
    assert!(
        error.starts_with("error: The library between programs and the driver is of another version of gpuheap\n"),
        "{error}"
    );
    // A command that came alone.
    fs::copy(env!("CARGO_BIN_EXE_gpuheap"), rig.path("gpuheap")).unwrap();
    let mut alone = Command::new(rig.path("gpuheap"));
    let (code, _, error) =
        said(alone.args(["run", "true"]).env("XDG_RUNTIME_DIR", rig.path("session")).env_remove("GPUHEAP_RUN"));
    assert_eq!(code, Some(2));
    assert!(error.starts_with("error: Failed to find `libgpuheap_shim.so`, which stands between"), "{error}");
    assert!(error.contains(&format!("\n  {}\n", rig.path("libgpuheap_shim.so").display())), "{error}");
}

#[test]
fn a_driver_that_is_there_before_the_shim_is_no_reason_to_pretend() {
    let rig = Rig::new();
    let mut command = rig.run(&[], &["true"]);
    fs::write(rig.path("preloaded.c"), STUB).unwrap();
    let preloaded = rig.compile("preloaded.so", &["preloaded.c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    let (code, _, error) = said(command.env("LD_PRELOAD", &preloaded));
    assert_eq!(code, Some(2));
    let expected = format!(
        "error: Failed to stand between programs and the CUDA driver: a program gets `{}` by its name\n\nhint: is a driver \
         in `LD_PRELOAD`, or in the loader's own settings (`/etc/ld.so.preload`)?\n",
        preloaded.display()
    );
    assert_eq!(error, expected);
}

/// With a budget, programs that ask the driver's management library (NVML) get gpuheap's before it.
#[test]
fn within_a_budget_the_management_library_is_in_between_if_there_is_one() {
    let rig = Rig::new();
    let program = "#include <dlfcn.h>\n#include <stdio.h>\nint main(void) { void *library = dlopen(\"libnvidia-ml.so.1\", \
                   RTLD_NOW);\nif (!library) return 1;\nprintf(\"%d %d\\n\", dlsym(library, \"gpuheap_shim_nvml_version\") \
                   != NULL, ((int (*)(void))dlsym(library, \"nvmlInit_v2\"))());\nreturn 0; }\n";
    fs::write(rig.path("asks.c"), program).unwrap();
    let program = rig.compile("asks", &["asks.c", "-ldl"]);
    let asked = |options: &[&str]| {
        let (code, output, error) = said(&mut rig.run(options, &[program.to_str().unwrap()]));
        assert!(error.is_empty() || error.starts_with("gpuheap: no process"), "{error}");
        (code, output)
    };
    assert_eq!(asked(&["--budget", "1GiB"]), (Some(1), String::new()), "there is none");
    fs::write(rig.path("management.c"), "int nvmlInit_v2(void) { return 77; }\n").unwrap();
    rig.compile("driver/libnvidia-ml.so.1", &["management.c", "-shared", "-fPIC"]);
    assert_eq!(asked(&["--budget", "1GiB"]), (Some(0), "1 77\n".to_owned()));
    assert_eq!(asked(&[]), (Some(0), "0 77\n".to_owned()));
    // One that cannot be loaded is not made worse.
    fs::write(rig.path("needed.c"), "int needed(void) { return 0; }\n").unwrap();
    rig.compile("libneeded.so", &["needed.c", "-shared", "-fPIC"]);
    fs::write(rig.path("broken.c"), "int needed(void);\nint nvmlInit_v2(void) { return needed(); }\n").unwrap();
    rig.compile("driver/libnvidia-ml.so.1", &["broken.c", "-shared", "-fPIC", "-L.", "-lneeded"]);
    fs::remove_file(rig.path("libneeded.so")).unwrap();
    assert_eq!(asked(&["--budget", "1GiB"]), (Some(1), String::new()));
}
