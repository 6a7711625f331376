#include "server/transport/h2/rate_limiter_codec.h"
#include "gtest/gtest.h"
