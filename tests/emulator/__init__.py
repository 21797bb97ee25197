"""An emulator of the GPU libraries in host memory: for behaviour, where there is no GPU."""
