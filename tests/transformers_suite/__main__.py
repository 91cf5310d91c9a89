import os, sys, unittest, time
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from tests.transformers_suite.source import common
from tests.transformers_suite.models import MODELS, test_case
suite = common()
for model in MODELS:
    if sys.argv[1:] and model.name not in sys.argv[1:]: continue
    case = test_case(suite, model)
    t=time.time()
    result = unittest.TextTestRunner(stream=open(os.devnull,"w"), verbosity=0).run(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    bad = {}
    for t_, text in result.failures + result.errors:
        name = getattr(t_, "test_case", t_)._testMethodName
        bad.setdefault(name, []).append((str(t_), text))
    print(model.name, "run", result.testsRun, "skipped", len({s[0]._testMethodName if hasattr(s[0],'_testMethodName') else str(s[0]) for s in result.skipped}), "failed", len(bad), f"{time.time()-t:.0f} s", flush=True)
    for name, all in bad.items():
        print("   ", name, len(all)); 
        for w, text in all[:8]: print("        ", w[-60:], text.strip().splitlines()[-1][:250] if text.strip() else "")
    if os.environ.get("FULL"):
        for n, all in bad.items(): print(n, all[0][1])
