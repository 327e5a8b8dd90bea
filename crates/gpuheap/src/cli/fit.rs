//! The arguments of `gpuheap fit`.

use std::path::PathBuf;

use clap::Args;
use gpuheap_fit::Lever;
use gpuheap_record::Bytes;

use super::Form;

const AFTER: &str = "\
Examples:
  gpuheap fit train.py:make --budget 24GiB             will it fit, and if not, what makes it fit?
  gpuheap fit train.py:make --budget 24GiB --gpus 2    on two GPUs, in the fastest way that fits
  gpuheap fit train.py:make --budget 24GiB --verify    two steps on the GPU: predicted and real
  gpuheap fit --calibrate --device A100                measure the GPU that is here
  gpuheap fit train.py:make --device L4 --set autocast=bfloat16 --set checkpoint=all --without all
  gpuheap fit train.py:make --budget 16GiB --html plan.html
  gpuheap fit train.py:make --budget 16GiB --json --output plan.json
  gpuheap check --plan plan.json                       does it still fit? for continuous integration

`make` is a function without arguments that returns (model, optimizer, loss, batch), all on the CPU:
  def make():
      model = Net()
      optimizer = torch.optim.AdamW(model.parameters())
      loss = torch.nn.functional.cross_entropy  # None: model(**batch).loss
      batch = (torch.zeros(16, 3, 224, 224), torch.zeros(16, dtype=torch.long))
      return model, optimizer, loss, batch

Exit codes: 0 done (whatever the verdict), 1 `--verify` found that it does not fit, 2 bad input or use";

/// What to fit into what.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Fit {
    /// The function that makes the model: a file and a name, such as `train.py:make`, or `package.module:make`
    #[arg(value_name = "MAKE", required_unless_present_any = ["traces", "calibrate"])]
    pub(crate) make: Option<String>,

    /// Memory that the program may take of each device, its CUDA context included: `24GiB`, `24GB` or bytes [default: all
    /// of the device]
    #[arg(long, value_name = "SIZE", value_parser = super::limit)]
    pub(crate) budget: Option<Bytes>,

    /// The type of device: `H200`, `H100`, `A100`, `RTX 4090`, `L4`, `T4`, `generic`, or one of `--device-file`
    #[arg(long, value_name = "NAME", default_value = "H200")]
    pub(crate) device: String,

    /// Devices of one host to spread the work over: as copies of the model, by FSDP2, tensor parallelism or a pipeline,
    /// whatever is the fastest that fits
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) gpus: u32,

    /// Samples a step, on all devices together [default: those of the batch that `make` returns]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) batch: Option<u64>,

    /// Settings of the allocator, as in `PYTORCH_CUDA_ALLOC_CONF`; no others are tried then
    #[arg(long, value_name = "STRING")]
    pub(crate) conf: Option<String>,

    /// A lever that the plan must have: `accumulate=4`, `optimizer=fused`, `autocast=bfloat16`, `checkpoint=all`, or as
    /// JSON; may be repeated
    #[arg(long = "set", value_name = "LEVER", value_parser = lever)]
    pub(crate) set: Vec<Lever>,

    /// A lever that the plan may not have, by name, or `all`; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) without: Vec<String>,

    /// A lever that the plan may have although it changes results: `autocast`, `parameters`, `optimizer_state`, `8bit`,
    /// `4bit`; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) allow: Vec<String>,

    /// Show time against memory, too: the fastest plan for every budget
    #[arg(long)]
    pub(crate) front: bool,

    /// Write time against memory as a picture, too: an SVG file; with `--front`
    #[arg(long, value_name = "PATH")]
    pub(crate) front_svg: Option<PathBuf>,

    /// Write the plan as one HTML file, too, to be opened in a browser: memory through time as it is and as planned, the
    /// changes, time against memory; it needs no network. `-` is standard output, in place of the text
    #[arg(long, value_name = "PATH")]
    pub(crate) html: Option<PathBuf>,

    /// Run two steps with the plan on the GPU of this machine, and print predicted and real
    #[arg(long)]
    pub(crate) verify: bool,

    /// Measure the GPU of this machine first, in some seconds: plans for that type of device use its figures from then on
    #[arg(long)]
    pub(crate) calibrate: bool,

    /// Fit this trace instead of making one; may be repeated, for several batch sizes
    #[arg(long = "trace", value_name = "FILE", conflicts_with = "make")]
    pub(crate) traces: Vec<PathBuf>,

    /// Keep the trace in this file
    #[arg(long, value_name = "PATH", conflicts_with = "traces")]
    pub(crate) keep_trace: Option<PathBuf>,

    /// The most seconds that making and tracing the program may take each time [default: as long as it takes]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: Option<u64>,

    /// Read devices from this file, too: a JSON object of devices by name
    #[arg(long, value_name = "PATH")]
    pub(crate) device_file: Option<PathBuf>,

    /// The Python that has the model's packages [default: the one of this gpuheap, of the virtual environment, or `python3`]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) form: Form,
}

fn lever(text: &str) -> Result<Lever, String> {
    text.parse().map_err(|error: gpuheap_fit::levers::ParseLeverError| error.to_string())
}
