"""BERT base with SGD and momentum, six steps, in the manner of capture.py."""
import os, sys, json, random, time, torch
from transformers import BertConfig, BertForMaskedLM
out=sys.argv[1]; torch.manual_seed(0); random.seed(0); dev='cuda'; torch.cuda.init()
torch.cuda.memory._record_memory_history(max_entries=200000, stacks='python')
c=BertConfig(); m=BertForMaskedLM(c).to(dev); m.train(); o=torch.optim.SGD(m.parameters(),1e-3,momentum=0.9)
for i in range(6):
    x=torch.randint(0,c.vocab_size,(16,512),device=dev); o.zero_grad(); l=m(input_ids=x,labels=x).loss; l.backward(); o.step(); torch.cuda.synchronize()
torch.cuda.memory._dump_snapshot(out); torch.cuda.memory._record_memory_history(enabled=None)
def b(ts): return sum({t.untyped_storage().data_ptr():t.untyped_storage().nbytes() for t in ts if torch.is_tensor(t) and t.is_cuda}.values())
st=torch.cuda.memory_stats()
print('FIG',json.dumps(dict(name='bert_sgd', alloc_peak=st['allocated_bytes.all.peak'], req_peak=st['requested_bytes.all.peak'], reserved_peak=st['reserved_bytes.all.peak'], active_peak=st['active_bytes.all.peak'], inactive_split_peak=st['inactive_split_bytes.all.peak'], segs=st['segment.all.allocated'], retries=st['num_alloc_retries'], ooms=st['num_ooms'], allocs=st['allocation.all.allocated'], alloc_current=st['allocated_bytes.all.current'], reserved_current=st['reserved_bytes.all.current'], conf=os.environ.get('PYTORCH_CUDA_ALLOC_CONF',''), param_bytes=b(m.parameters()),buffer_bytes=b(m.buffers()),grad_bytes=b([p.grad for p in m.parameters() if p.grad is not None]),opt_bytes=b([v for s in o.state.values() for v in s.values()]),n_param_tensors=len(list(m.parameters())))),flush=True)
