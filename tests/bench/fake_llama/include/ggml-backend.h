#pragma once
enum ggml_backend_dev_type { GGML_BACKEND_DEVICE_TYPE_CPU };
typedef void *ggml_backend_dev_t, *ggml_backend_reg_t;
ggml_backend_dev_t ggml_backend_dev_by_type(enum ggml_backend_dev_type type);
ggml_backend_reg_t ggml_backend_dev_backend_reg(ggml_backend_dev_t device);
void *ggml_backend_reg_get_proc_address(ggml_backend_reg_t reg, const char *name);
