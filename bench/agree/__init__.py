"""Agreement with llama.cpp, teacher-forced: both engines score the same tokens."""
