//! How programs come to the library, and what the library needs.

use std::collections::BTreeSet;
use std::process::Command;

use gpuheap_cuda::symbols;
use gpuheap_shim::NAMES;

use crate::rig::{Driver, Rig, library, said};

fn dynamic(name: &str) -> String {
    said(Command::new("readelf").args(["--dynamic", "--wide"]).arg(library(name)).env("LC_ALL", "C")).0
}

#[test]
fn it_has_the_driver_s_name_and_needs_the_c_library_and_the_driver_behind_it_alone() {
    let dynamic = dynamic("libgpuheap_shim.so");
    let of = |tag: &str| -> BTreeSet<String> {
        let lines = dynamic.lines().filter(|line| line.contains(tag));
        lines.filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_owned())).collect()
    };
    assert_eq!(of("(SONAME)"), BTreeSet::from(["libcuda.so.1".to_owned()]));
    // The older tag, which is searched before LD_LIBRARY_PATH.
    assert_eq!((of("(RPATH)"), of("(RUNPATH)")), (BTreeSet::from(["$ORIGIN".to_owned()]), BTreeSet::new()));
    let mut needed = of("(NEEDED)");
    assert!(needed.remove("libcuda-real.so") && needed.remove("libc.so.6"), "{needed:?}");
    needed.retain(|name| !name.starts_with("ld-linux"));
    assert_eq!(needed, BTreeSet::new(), "programs without these must run as well");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

#[test]
fn it_exports_what_is_overridden_and_a_few_names_of_its_own() {
    let mut command = Command::new("readelf");
    command.args(["--dyn-syms", "--wide"]).arg(library("libgpuheap_shim.so")).env("LC_ALL", "C");
    let (text, _) = said(&mut command);
    let defined = text.lines().filter(|line| line.contains(" FUNC ") && !line.contains(" UND "));
    let exported: BTreeSet<&str> = defined.filter_map(|line| line.split_whitespace().last()).collect();
    let mut wanted: BTreeSet<&str> = NAMES.iter().copied().collect();
    wanted.extend(["gpuheap_shim_bytes", "gpuheap_shim_mistakes", "gpuheap_shim_version"]);
    assert_eq!(exported, wanted);
}

#[test]
fn every_name_of_the_driver_is_found_through_it() {
    // A program that looks all of them up and says which are not there.
    let rig = Rig::new();
    let source = rig.path("names.c");
    let names: Vec<String> = symbols::all().iter().map(|symbol| format!("\"{}\",", symbol.name)).collect();
    let text = format!(
        "#include <dlfcn.h>\n#include <stdio.h>\nstatic const char *names[] = {{{} 0}};\nint main(void) {{\n\
         void *library = dlopen(\"libcuda.so.1\", RTLD_NOW | RTLD_LOCAL);\n\
         for (int i = 0; names[i]; i++) if (dlsym(library, names[i]) == 0) printf(\"%s\\n\", names[i]);\n\
         return library == 0; }}\n",
        names.join(" ")
    );
    std::fs::write(&source, text).unwrap();
    let program = rig.path("names");
    let mut compiler = Command::new("cc");
    assert!(compiler.arg("-o").arg(&program).arg(&source).arg("-ldl").status().unwrap().success());
    assert_eq!(said(&mut rig.command(Driver::Shim, &program)).0, "");
}

#[test]
fn it_is_found_by_either_name_and_works_when_it_was_closed_or_bound_deeply() {
    let rig = Rig::new();
    let client = rig.client();
    let (plain, charged) = said(rig.command(Driver::Shim, &client).arg("calls"));
    for (name, value) in [("CLIENT_LIBRARY", "libcuda.so"), ("CLIENT_DEEP", "1"), ("CLIENT_REOPEN", "1")] {
        let (text, figures) = said(rig.command(Driver::Shim, &client).arg("calls").env(name, value));
        assert_eq!((text, figures), (plain.clone(), charged.clone()), "{name}");
    }
}

#[test]
fn a_program_that_is_linked_with_the_driver_gets_it() {
    let rig = Rig::new();
    let (source, program) = (rig.path("linked.c"), rig.path("linked"));
    let text = "#include <stdio.h>\nint cuInit(unsigned);\nint cuMemAlloc_v2(unsigned long *, unsigned long);\n\
         unsigned gpuheap_shim_version(void);\n\
         int main(void) { unsigned long a; int first = cuInit(0), second = cuMemAlloc_v2(&a, 512);\n\
         printf(\"%d %d %d\\n\", first, second, gpuheap_shim_version() != 0); }\n";
    std::fs::write(&source, text).unwrap();
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(&program).arg(&source).arg("-L").arg(rig.driver_folder(Driver::Shim));
    compiler.arg("-Wl,--allow-shlib-undefined").arg("-lcuda");
    assert!(compiler.status().unwrap().success());
    // Without a context there is no memory: 201.
    assert_eq!(said(&mut rig.command(Driver::Shim, &program)).0, "0 201 1\n");
}

#[test]
fn a_function_that_the_driver_lacks_is_not_offered_and_does_nothing() {
    let rig = Rig::new();
    let (old, source, program) = (rig.path("old.c"), rig.path("asks.c"), rig.path("asks"));
    // A driver from before reservations.
    let text = "int cuInit(unsigned flags) { return (int)flags; }\n\
         int cuGetProcAddress(const char *name, void **found, int version, unsigned long flags)\n\
         { (void)name; (void)version; (void)flags; *found = 0; return 500; }\n";
    std::fs::write(&old, text).unwrap();
    let library = rig.driver_folder(Driver::Shim).join("libcuda-real.so");
    std::fs::remove_file(&library).unwrap();
    assert!(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&old).status().unwrap().success());
    let text = "#include <dlfcn.h>\n#include <stdio.h>\nint main(void) {\n\
         void *library = dlopen(\"libcuda.so.1\", RTLD_NOW), *found = (void *)1;\n\
         int (*start)(unsigned) = dlsym(library, \"cuInit\");\n\
         int (*create)(void *, unsigned long, void *, unsigned long) = dlsym(library, \"cuMemCreate\");\n\
         int (*find)(const char *, void **, int, unsigned long) = dlsym(library, \"cuGetProcAddress\");\n\
         int first = start(0), second = create(0, 0, 0, 0), third = find(\"cuMemCreate\", &found, 10020, 1);\n\
         printf(\"%d %d %d %d\\n\", first, second, third, found == 0); }\n";
    std::fs::write(&source, text).unwrap();
    assert!(Command::new("cc").arg("-o").arg(&program).arg(&source).arg("-ldl").status().unwrap().success());
    assert_eq!(said(&mut rig.command(Driver::Shim, &program)).0, "0 500 500 1\n");
}

#[test]
fn without_a_driver_behind_it_the_loader_says_what_is_missing() {
    let rig = Rig::new();
    let client = rig.client();
    std::fs::remove_file(rig.driver_folder(Driver::Shim).join("libcuda-real.so")).unwrap();
    let output = rig.command(Driver::Shim, &client).arg("calls").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("libcuda-real.so"), "{text}");
}
