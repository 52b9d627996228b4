import time
def test_t(toy, train, tmp_path):
    for i in range(4):
        t=time.time(); r=train(tmp_path/str(i), updates=2); print(time.time()-t)
    print(r.text[-1500:])
