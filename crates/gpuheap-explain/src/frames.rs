//! What a frame is: the user's code or a library's, and which part of a framework.
//!
//! Rules look at the published layout of PyTorch, of Python and of packages, never at names of a particular program.

use foldhash::HashMap;
use gpuheap_record::{DRIVER_FILE, FrameId, Recording, StackId, StringId};

use crate::gaps::UNKNOWN_FILE;
use crate::report::Site;

/// What is known of a stack: a set of marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Marks(u16);

impl Marks {
    /// A module's `__call__`: the forward pass.
    pub(crate) const MODULE_CALL: Self = Self(1);
    /// Something that makes, moves or loads parameters and buffers.
    pub(crate) const PARAMETER: Self = Self(1 << 1);
    /// An optimizer.
    pub(crate) const OPTIMIZER: Self = Self(1 << 2);
    /// The root gradient of a backward pass.
    pub(crate) const ROOT_GRADIENT: Self = Self(1 << 3);
    /// Inside the autograd engine.
    pub(crate) const BACKWARD: Self = Self(1 << 4);
    /// Collective communication.
    pub(crate) const COMMUNICATION: Self = Self(1 << 5);
    /// A cache of keys and values.
    pub(crate) const KV_CACHE: Self = Self(1 << 6);
    /// Loading of data.
    pub(crate) const DATA: Self = Self(1 << 7);
    /// A compiler of models at work, or code that it made.
    pub(crate) const COMPILER: Self = Self(1 << 8);
    /// The outermost frame is not where a program or a thread of it starts: a callback from native code.
    pub(crate) const ROOTLESS: Self = Self(1 << 9);
    /// A library's work space, as its native frames tell.
    pub(crate) const WORKSPACE: Self = Self(1 << 10);
    /// Memory of the driver, as whoever asked for it got it.
    pub(crate) const DRIVER: Self = Self(1 << 11);

    /// Whether any of `other` is set.
    pub(crate) fn any(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// This set without `other`.
    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Both sets together.
    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What every frame and stack of a recording is.
#[derive(Debug)]
pub(crate) struct FrameTableMarks {
    marks: Vec<Marks>,
    /// The innermost frame of the user's code, by stack.
    user: Vec<Option<FrameId>>,
    /// The stack that begins with that frame.
    user_stack: Vec<StackId>,
    /// The innermost frame of a Python file, by stack.
    python: Vec<Option<FrameId>>,
    /// Whether a frame is the user's own code, by frame.
    own: Vec<bool>,
}

impl FrameTableMarks {
    pub(crate) fn new(recording: &Recording) -> Self {
        let roots = torch_roots(recording);
        // Many frames share few files: each path is looked at once.
        let mut files: HashMap<StringId, FileKind> = HashMap::default();
        let frames: Vec<(Marks, bool, bool)> = recording
            .frames
            .iter()
            .map(|(id, frame)| {
                let kind = files.entry(frame.file).or_insert_with(|| FileKind::of(recording.file(id), &roots));
                let (marks, user) = classify(recording.function(id), kind);
                (marks, user, kind.is_python)
            })
            .collect();
        let count = recording.stacks.len();
        let mut marks = vec![Marks::default(); count];
        let mut user = vec![None; count];
        let mut user_stack = vec![StackId::default(); count];
        let mut python = vec![None; count];
        // Callers come first in the table, so each stack needs only its own innermost frame.
        for index in 1..count {
            let stack = StackId::from_index(index);
            let Some(frame) = recording.stacks.innermost(stack) else { continue };
            let (own, is_user, is_python) = frames.get(frame.index()).copied().unwrap_or_default();
            let caller = recording.stacks.caller(stack);
            let mut outer = marks[caller.index()];
            if own.any(Marks::MODULE_CALL.with(Marks::ROOT_GRADIENT)) {
                // A closure that the optimizer calls is a forward or backward pass, not the optimizer's work.
                outer = outer.without(Marks::OPTIMIZER);
            }
            let mut all = own.with(outer);
            if caller == StackId::default() && !is_program_root(recording.function(frame), recording.file(frame)) {
                all = all.with(Marks::ROOTLESS);
            }
            marks[index] = all;
            (user[index], user_stack[index]) =
                if is_user { (Some(frame), stack) } else { (user[caller.index()], user_stack[caller.index()]) };
            python[index] = if is_python { Some(frame) } else { python[caller.index()] };
        }
        let own = frames.into_iter().map(|(_, is_user, _)| is_user).collect();
        Self { marks, user, user_stack, python, own }
    }

    /// Whether a frame is the user's own code and not a library's.
    pub(crate) fn is_user_frame(&self, frame: FrameId) -> bool {
        self.own.get(frame.index()).copied().unwrap_or(false)
    }

    pub(crate) fn marks(&self, stack: StackId) -> Marks {
        self.marks[stack.index()]
    }

    /// The innermost frame of the user's own code.
    pub(crate) fn user_frame(&self, stack: StackId) -> Option<FrameId> {
        self.user[stack.index()]
    }

    /// The stack up to the innermost frame of the user's own code.
    pub(crate) fn user_stack(&self, stack: StackId) -> StackId {
        self.user_stack[stack.index()]
    }

    /// The frame that a person should look at: their own code before a library's, a library's before native code. `None`
    /// where no frame was recorded.
    pub(crate) fn site_frame(&self, recording: &Recording, stack: StackId) -> Option<FrameId> {
        let python = self.python[stack.index()];
        let innermost = || recording.stacks.innermost(stack).filter(|&frame| recording.file(frame) != UNKNOWN_FILE);
        self.user_frame(stack).or(python).or_else(innermost)
    }
}

fn is_python_file(path: &str) -> bool {
    std::path::Path::new(path).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("py"))
}

/// A frame as a site of the report.
pub(crate) fn site(recording: &Recording, frame: FrameId) -> Site {
    Site {
        file: recording.file(frame).to_owned(),
        line: recording.frame(frame).line,
        function: recording.function(frame).to_owned(),
    }
}

/// Whether a recording is of the driver's own memory.
pub(crate) fn is_of_driver(recording: &Recording) -> bool {
    recording.frames.iter().any(|(_, frame)| recording.strings.text(frame.file) == DRIVER_FILE)
}

/// Who asked the driver for memory, if the stack says that somebody did.
pub(crate) fn asked_driver(recording: &Recording, stack: StackId) -> Option<&str> {
    let mut frames = recording.frames_of(stack);
    let who = frames.next()?;
    (recording.file(frames.next()?) == DRIVER_FILE).then(|| recording.function(who))
}

/// The most frames of a stack that a report lists.
const MOST_FRAMES: usize = 200;

/// A stack as sites of the report, innermost first. Of a very deep one the outer frames are only counted.
pub(crate) fn sites(recording: &Recording, stack: StackId) -> Vec<Site> {
    let mut frames = recording.frames_of(stack);
    let mut sites: Vec<Site> = frames.by_ref().take(MOST_FRAMES).map(|frame| site(recording, frame)).collect();
    let more = frames.count();
    if more > 0 {
        sites.push(Site { file: String::new(), line: 0, function: format!("… {more} more frames") });
    }
    sites
}

/// Where copies of PyTorch's Python code lie: a checkout that is installed in place has no `site-packages` in its path.
fn torch_roots(recording: &Recording) -> Vec<String> {
    const LANDMARKS: [&str; 8] = [
        "/torch/nn/modules/module.py",
        "/torch/nn/functional.py",
        "/torch/optim/optimizer.py",
        "/torch/autograd/__init__.py",
        "/torch/autograd/graph.py",
        "/torch/autograd/function.py",
        "/torch/_tensor.py",
        "/torch/_ops.py",
    ];
    let mut roots: Vec<String> = Vec::new();
    for (_, text) in recording.strings.iter() {
        if !text.ends_with(".py") {
            continue;
        }
        let path = text.replace('\\', "/");
        for landmark in LANDMARKS {
            if let Some(root) = path.strip_suffix(landmark) {
                let root = format!("{root}/torch/");
                if !roots.contains(&root) && roots.len() < 16 {
                    roots.push(root);
                }
            }
        }
    }
    roots
}

/// The part of a path behind the folder of installed packages, or behind a copy of PyTorch as `torch/…`.
fn package_path<'a>(path: &'a str, torch_roots: &[String]) -> Option<&'a str> {
    for folder in ["/site-packages/", "/dist-packages/"] {
        if let Some((_, inside)) = path.rsplit_once(folder) {
            return Some(inside);
        }
    }
    torch_roots.iter().find_map(|root| path.strip_prefix(root.as_str()).map(|_| &path[root.len() - "torch/".len()..]))
}

fn is_standard_library(path: &str) -> bool {
    let lower = path.to_ascii_lowercase();
    let in_lib = lower.split_once("/lib/python3").is_some_and(|(_, rest)| rest.contains('/'));
    let windows = lower.split_once("/python3").is_some_and(|(_, rest)| rest.contains("/lib/"));
    in_lib || windows || lower.contains("/lib/pypy")
}

fn is_native(path: &str) -> bool {
    let extension = path.rsplit('.').next().unwrap_or("");
    path.is_empty()
        || path == "??"
        || matches!(extension, "cpp" | "cc" | "c" | "cu" | "h" | "hpp" | "cuh" | "so" | "pyx" | "S" | "tcc")
        || path.contains(".so.")
}

/// Where a program or one of its threads starts.
fn is_program_root(function: &str, path: &str) -> bool {
    matches!(
        function,
        "<module>" | "_bootstrap" | "_bootstrap_inner" | "_run_module_as_main" | "_start" | "clone" | "main"
    ) || path.starts_with("<frozen")
        // Nothing says that it was a callback.
        || path == UNKNOWN_FILE
        || path == DRIVER_FILE
        || function.contains("start_thread")
        || function.contains("__libc_start")
}

/// What a file is.
#[derive(Clone, Debug)]
struct FileKind {
    place: FilePlace,
    is_python: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum FilePlace {
    Native,
    /// None: the frame says how the driver was asked.
    Driver,
    /// In an installed package, or a copy of PyTorch: the path from the package's folder on.
    Package(String),
    /// Made by a compiler of models.
    Compiled,
    /// The standard library, or code that a library generated.
    Python,
    /// The program's own.
    User {
        /// Whether its name speaks of a cache of keys and values.
        kv_cache: bool,
    },
}

impl FileKind {
    fn of(file: &str, torch_roots: &[String]) -> Self {
        let path = file.replace('\\', "/");
        let place = match () {
            () if is_native(&path) => FilePlace::Native,
            () if path == DRIVER_FILE => FilePlace::Driver,
            () if path.starts_with('<') => {
                // Code that Python or a library generated; what a person typed is the exception.
                let typed = ["<stdin>", "<string>", "<ipython", "<input>", "<console>"];
                if typed.iter().any(|start| path.starts_with(start)) {
                    FilePlace::User { kv_cache: false }
                } else {
                    FilePlace::Python
                }
            }
            () => match package_path(&path, torch_roots) {
                Some(inside) => FilePlace::Package(inside.to_owned()),
                None if path.contains("/torchinductor_") || path.contains("/__pycache__/") => FilePlace::Compiled,
                None if is_standard_library(&path) => FilePlace::Python,
                None => FilePlace::User { kv_cache: names_kv_cache(&path) },
            },
        };
        Self { place, is_python: is_python_file(&path) }
    }
}

/// The marks of a frame, and whether it is the program's own.
fn classify(function: &str, file: &FileKind) -> (Marks, bool) {
    match &file.place {
        FilePlace::Native => (classify_native(function), false),
        FilePlace::Driver => (Marks::DRIVER, false),
        FilePlace::Package(inside) => (classify_package(function, inside), false),
        FilePlace::Compiled => (Marks::COMPILER, false),
        FilePlace::Python => (Marks::default(), false),
        FilePlace::User { kv_cache } => {
            let cache = *kv_cache || names_kv_cache(function);
            (if cache { Marks::KV_CACHE } else { Marks::default() }, true)
        }
    }
}

fn names_kv_cache(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    ["kv_cache", "kvcache", "past_key_value", "key_value_cache"].iter().any(|word| lower.contains(word))
}

fn classify_native(function: &str) -> Marks {
    let has = |words: &[&str]| words.iter().any(|word| function.contains(word));
    // Whole libraries, by the names that recordings of the driver's memory have for them.
    match function {
        "NCCL" => return Marks::COMMUNICATION,
        "cuBLAS" | "cuDNN" | "cuFFT" | "cuSPARSE" | "cuSOLVER" | "cuRAND" => return Marks::WORKSPACE,
        _ => {}
    }
    if has(&["CUDABlasWorkspace", "getNewWorkspace", "CurrentCUDABlasHandle", "cublasLtWorkspace"]) {
        Marks::WORKSPACE
    } else if has(&["torch::autograd::Engine", "autograd::Engine::", "Engine::evaluate_function", "AccumulateGrad"]) {
        Marks::BACKWARD
    } else if has(&["ProcessGroupNCCL", "ncclComm", "c10d::"]) {
        Marks::COMMUNICATION
    } else {
        Marks::default()
    }
}

/// The marks of a frame in an installed package, `inside` its path from the package's folder on.
fn classify_package(function: &str, inside: &str) -> Marks {
    let torch = inside.strip_prefix("torch/");
    match torch {
        Some(inside) => classify_torch(function, inside),
        None if inside.ends_with("cache_utils.py") || names_kv_cache(inside) || names_kv_cache(function) => {
            Marks::KV_CACHE
        }
        None if inside.contains("/optim") || inside.contains("/adam") || inside.starts_with("apex/optimizers") => {
            Marks::OPTIMIZER
        }
        None if inside.starts_with("safetensors/")
            || inside.ends_with("/modeling_utils.py") && function.contains("load")
            || inside.ends_with("/core_model_loading.py")
            || inside.ends_with("accelerate/utils/modeling.py") =>
        {
            Marks::PARAMETER
        }
        None => Marks::default(),
    }
}

fn classify_torch(function: &str, inside: &str) -> Marks {
    match inside {
        "nn/modules/module.py" => match function {
            "_call_impl" | "_wrapped_call_impl" | "_slow_forward" | "__call__" => Marks::MODULE_CALL,
            "_apply" | "convert" | "to_empty" | "cuda" | "load_state_dict" | "_load_from_state_dict" => {
                Marks::PARAMETER
            }
            _ => Marks::default(),
        },
        "nn/parameter.py" | "nn/init.py" => Marks::PARAMETER,
        "autograd/__init__.py" if function == "_make_grads" => Marks::ROOT_GRADIENT,
        "autograd/graph.py" if function == "_engine_run_backward" => Marks::BACKWARD,
        _ if inside.starts_with("nn/modules/")
            && matches!(function, "__init__" | "reset_parameters" | "flatten_parameters" | "initialize_parameters") =>
        {
            Marks::PARAMETER
        }
        _ if inside.starts_with("optim/")
            && !inside.ends_with("swa_utils.py")
            && !inside.ends_with("lr_scheduler.py") =>
        {
            Marks::OPTIMIZER
        }
        _ if inside.starts_with("utils/data/") => Marks::DATA,
        _ if inside.starts_with("_inductor/")
            || inside.starts_with("_dynamo/")
            || inside.starts_with("_functorch/") =>
        {
            Marks::COMPILER
        }
        _ if inside.ends_with("distributed_c10d.py")
            || inside.ends_with("_functional_collectives.py")
            || inside.ends_with("_fsdp_collectives.py")
            || inside.ends_with("nn/parallel/distributed.py")
                && matches!(function, "_ddp_init_helper" | "_sync_module_states" | "_sync_buffers") =>
        {
            Marks::COMMUNICATION
        }
        _ => Marks::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(file: &str) -> bool {
        classify("f", &FileKind::of(file, &["/home/me/pytorch/torch/".to_owned()])).1
    }

    #[test]
    fn own_code_is_told_from_libraries() {
        for file in [
            "train.py",
            "/home/me/torch/train.py",
            "/tmp/ipykernel_9/1.py",
            "<stdin>",
            "<ipython-input-3-ab>",
            "C:\\work\\a.py",
        ] {
            assert!(user(file), "{file}");
        }
        for file in [
            "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py",
            "C:\\Python312\\Lib\\site-packages\\torch\\_tensor.py",
            "/usr/lib/python3/dist-packages/numpy/core.py",
            "/usr/lib/python3.11/contextlib.py",
            "/home/me/pytorch/torch/nn/functional.py",
            "<frozen importlib._bootstrap>",
            "<eval_with_key>.12",
            "/tmp/torchinductor_me/ab/cab.py",
            "??",
            "",
            "/build/aten/src/ATen/native/Linear.cpp",
        ] {
            assert!(!user(file), "{file}");
        }
    }

    #[test]
    fn framework_frames_are_recognised() {
        let torch = |function, inside: &str| {
            classify(function, &FileKind::of(&format!("/v/lib/python3.12/site-packages/torch/{inside}"), &[])).0
        };
        assert_eq!(torch("_call_impl", "nn/modules/module.py"), Marks::MODULE_CALL);
        assert_eq!(torch("convert", "nn/modules/module.py"), Marks::PARAMETER);
        assert_eq!(torch("_init_group", "optim/adam.py"), Marks::OPTIMIZER);
        assert_eq!(torch("_make_grads", "autograd/__init__.py"), Marks::ROOT_GRADIENT);
        assert_eq!(torch("forward", "nn/modules/linear.py"), Marks::default());
        assert_eq!(torch("forward", "nn/parallel/distributed.py"), Marks::default());
    }
}
