// Everything of the library in one include.
#pragma once

#include "locks/attend.h"
#include "locks/decode.h"
#include "locks/error.h"
#include "locks/page_summary.h"
#include "locks/paged_cache.h"
#include "locks/rotation.h"
#include "locks/score.h"
#include "locks/select.h"
#include "locks/summarize.h"
#include "locks/target.h"
#include "locks/team.h"
#include "locks/thread_pool.h"
#include "locks/types.h"
#include "locks/version.h"
#include "locks/view.h"
