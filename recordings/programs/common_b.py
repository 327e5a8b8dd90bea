"""common.main with the same STEPS (and more), which writes two snapshots of one run: OUT/NAME.pickle inside the last step and OUT/after_return/NAME.pickle after spec['run'] returned."""
import sys, os, gc, json, random, torch
from common import STEPS
EXTRA = {
    'accum_outputs': 60, 'amp_cycle': 45, 'amp_fp16_scaler': 45, 'caught_oom': 45, 'checkpointed': 40,
    'compiled_train': 45, 'cpu_logits': 40, 'ddp1': 40, 'double_backward_cleared': 40, 'double_backward_copies': 40,
    'eval_graph': 48, 'few_steps': 5, 'few_steps_leak': 5, 'functional': 50, 'functional_leak': 50, 'gan_two_opt': 50,
    'gc_auto': 75, 'generate_kept': 40, 'generate_loop': 40, 'hf_trainer': 40, 'hf_trainer_leak': 40, 'infer_variable': 60,
    'infer_varlen': 60, 'kv_cache_reset': 100, 'lbfgs': 60, 'leak_oom': 10**9, 'lightning': 45, 'lightning_leak': 45,
    'model_sweep': 64, 'model_sweep_leak': 64, 'new_optimizer': 50, 'prefetch_queue': 60, 'random_pool': 120,
    'running_loss': 48, 'running_loss_item': 48, 'running_loss_freed': 48, 'server_threads': 60, 'server_threads_leak': 60,
    'sgd_momentum': 45, 'slow_fill': 100, 'tensor_hook_clone': 45, 'trainer_class': 48, 'trainer_leak': 48, 'two_phase': 80,
}
EXTRA.update(late_leak=80, two_leaks=60, loss_detached=60, mse_pins=50, epoch_outputs=75, stream_leak=50, leak_and_frag=60, cut_trace_leak=80, cut_trace_healthy=80,
             late_recording_leak=60, late_recording_healthy=60, growing_sequences=60, cat_history=60, varlen_train=60, oom_retained=45)
STEPS = dict(STEPS, **EXTRA)
def main(scripts):
    name, out = sys.argv[1], sys.argv[2]; label = os.environ.get('LABEL', name)
    os.makedirs(f'{out}/after_return', exist_ok=True)
    spec = dict(scripts[name]);
    if os.environ.get('VERDICT'): spec.update(verdict=os.environ['VERDICT'], cause=os.environ['CAUSE'])
    used, reserved = [], []; oom = {}
    torch.manual_seed(0); random.seed(0); torch.cuda.init(); torch.zeros(1, device='cuda')
    if spec.get('cap_gib'): torch.cuda.set_per_process_memory_fraction(spec['cap_gib'] * 2**30 / torch.cuda.get_device_properties(0).total_memory)
    def record(): torch.cuda.memory._record_memory_history(max_entries=spec.get('max_entries', 500000), stacks='python')
    if not spec.get('record_from'): record()
    def dump(where): torch.cuda.memory._dump_snapshot(f'{out}/{where}{label}.pickle')
    def mark():
        torch.cuda.synchronize(); used.append(torch.cuda.memory_allocated()); reserved.append(torch.cuda.memory_reserved())
        if len(used) == spec.get('record_from'): record()
        if len(used) == STEPS[name]: dump('')
    if spec.get('until_oom'):
        def observer(device, alloc, device_alloc, device_free):
            oom.setdefault('observer', [alloc, device_alloc, device_free]); dump('')
        torch._C._cuda_attach_out_of_memory_observer(observer)
        try: spec['run'](mark)
        except torch.OutOfMemoryError as e:
            oom['message'] = str(e)[:600]
            if not os.path.exists(f'{out}/{label}.pickle'): oom['dumped_in'] = 'except'; dump('')
    else: spec['run'](mark)
    dump('after_return/')
    after = torch.cuda.memory_allocated(); gc.collect(); after_gc = torch.cuda.memory_allocated()
    st = torch.cuda.memory_stats()
    n = len(used); half = used[n//2:]; slope = (half[-1]-half[0])/max(1, len(half)-1)
    lab = {k: v for k, v in spec.items() if k not in ('run', 'until_oom')}
    lab.update(name=label, steps=n, bytes_per_step=round(slope), allocated=used, reserved=reserved, torch=torch.__version__,
               allocated_after_return=after, allocated_after_gc=after_gc, conf=os.environ.get('PYTORCH_CUDA_ALLOC_CONF', ''),
               peak_allocated=st['allocated_bytes.all.peak'], peak_reserved=st['reserved_bytes.all.peak'], peak_requested=st['requested_bytes.all.peak'],
               peak_active=st['active_bytes.all.peak'], alloc_retries=st['num_alloc_retries'], ooms=st['num_ooms'], allocations=st['allocation.all.allocated'])
    if oom: lab['oom'] = oom
    if n != STEPS[name] and not spec.get('until_oom'): lab['wrong_step_count'] = STEPS[name]
    json.dump(lab, open(f'{out}/{label}.json', 'w')); json.dump(lab, open(f'{out}/after_return/{label}.json', 'w'))
    print('LEAKCASE', label, lab['verdict'], n, round(slope), used[-1], reserved[-1], os.path.getsize(f'{out}/{label}.pickle'), 'returned', after, 'gc', after_gc, flush=True)
    os._exit(0)   # no tear-down: pools, threads and process groups may hang in it
