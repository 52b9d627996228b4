def test_a(checkpoints, run, toy):
    print(checkpoints)
