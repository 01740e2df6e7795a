// done_copy.cc - keeps the callback of an asynchronous kernel. TensorFlow's C interface passes the address of a
// std::function that lives on its stack until compute() returns, and nothing in C can copy it.
#include <functional>

extern "C" {
__attribute__((visibility("hidden"))) void *trib_done_copy(void *done)
{
    return new std::function<void()>(*static_cast<std::function<void()> *>(done));
}

__attribute__((visibility("hidden"))) void trib_done_run(void *copy)
{
    auto *function = static_cast<std::function<void()> *>(copy);
    (*function)();
    delete function;
}
}
