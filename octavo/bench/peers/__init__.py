"""Other engines on the same workload. Each is driven by a script that its own interpreter runs, without Octavo there:

```text
parent                         runner (transformers_runner.py, vllm_runner.py, ...)
stdin: one line, the job  ──▶  loads the model
                          ◀──  {"version": ...}                        ready: the parent stops the clock of the start
                          ◀──  {"users": n, "elapsed_s": s, "times": [...]}    once per entry of the job's "users"
end of stdin              ──▶  exits; until then the parent can read how much memory it took
```
"""
