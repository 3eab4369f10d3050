"""The finished study: does numerical noise help PredNet to train?

README.md has the question, the answer and every command. The long trainings go through
    parts -> seed_trainings (with dose, endpoints) -> seed_records, two files a part
    -> judgement (contrasts, the answer) -> tables, figures -> make_tables
Part A is `prednet_jax.saddles.symmetric`; `chainer` shows the mistake in Chainer. The
study imports the package, and nothing imports the study.
"""
