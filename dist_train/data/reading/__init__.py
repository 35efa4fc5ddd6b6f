"""Read the samples of a batch, in the rank or in its loader workers.

make_torch_loader     the TorchLoader of a data set, by the options of dt.loader
torch_loader          the torch DataLoader behind a loader; workers kept between epochs
loader_workers        end loader workers with the iteration and with the process
dataset_changes       notice that a data set was changed since its workers started
dataset_state         a data set's own state_dict, kept with the loader's position
sample_reader         read and collate the samples of a micro-batch
batched_items         use `__getitems__` while it draws no random numbers
same_sample           compare two samples bit by bit
sliced_tensors        a batch of a TensorDataset by one selection of rows per tensor
sample_rng            seed the random generators for each sample
prefetch              copy the next batch to the GPU while the current one trains
shared_memory         warn where /dev/shm is small
"""
