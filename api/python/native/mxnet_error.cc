// mxnet_error.cc - errors as MXNet wants them: it copies a dmlc::Error, which is a std::runtime_error and no more.
#include <stdexcept>

extern "C" {
__attribute__((visibility("hidden"))) void *trib_mxnet_error_make(const char *text)
{
    return new std::runtime_error(text);
}

__attribute__((visibility("hidden"))) void trib_mxnet_error_free(void *error)
{
    delete static_cast<std::runtime_error *>(error);
}
}
