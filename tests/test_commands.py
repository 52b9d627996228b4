import socket, time
from conftest import *
import torch
def load(p): return torch.load(p, weights_only=False)
def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1",0)); return s.getsockname()[1]
def two(start, toy, save, *opts, updates=2):
    p=port()
    cs=[start("fairseq-train",*train_arguments(toy, save,*opts,"--distributed-init-method",f"tcp://127.0.0.1:{p}","--distributed-world-size",2,"--distributed-rank",r,"--distributed-no-spawn","--device-id",r,"--distributed-backend","gloo",updates=updates)) for r in (0,1)]
    return [c.finish() for c in cs]
def test_ddp(start, toy, train, tmp_path, run):
    for b in ("legacy_ddp","pytorch_ddp","c10d","no_c10d"):
        t=time.time()
        rs=two(start,toy,tmp_path/b,*GATED,"--ddp-backend",b)
        print(b,[r.code for r in rs],time.time()-t, rs[0].err[-1500:] if rs[0].code else "ok")
    closed=["--optimizer","sgd","--lr",0.1,"--dropout",0,"--gate-heads",TYPES,"--gate-init=-15","--criterion","label_smoothed_cross_entropy_l0","--l0-weight","1e6", "--max-tokens",100]
    r=train(tmp_path/"one",*closed,"--update-freq",2)
    print([l for l in r.text.splitlines() if "train_inner" in l])
    rs=two(start,toy,tmp_path/"two",*closed,"--ddp-backend","legacy_ddp")
    print([r.code for r in rs],[l for r in rs for l in r.text.splitlines() if "train_inner" in l])
    r=train(tmp_path/"big",*closed,"--max-tokens",1000)
    a,b,c=[load(tmp_path/x/"checkpoint_last.pt")["model"] for x in ("one","two","big")]
    for k in []:
        print(k,(a[k]-b[k]).abs().max().item(),(a[k]-c[k]).abs().max().item(), a[k].tolist() if "gate" in k else "")
