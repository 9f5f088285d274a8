"""Tasks, data sets, training and scoring; the only package that imports torch.

`task` defines what an author returns, `tasks` the built-in ones; `learner` trains and scores flat vectors,
`training_loop` is the loop, `dp_sgd` its private variant; `trainer` runs jobs in one thread per process. Some
modules, such as `malloc` and `kernels`, need no torch.
"""
