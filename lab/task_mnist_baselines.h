/* task_mnist_baselines.h - results of simpler methods on the images. */
#ifndef KR_LAB_TASK_MNIST_BASELINES_H
#define KR_LAB_TASK_MNIST_BASELINES_H

#include "lab/task_mnist.h"

/* A linear classifier on pixels; the mean image as a constant prediction, and the least possible loss. Both print a
 * line; false after an error message. */
bool mnist_linear_baseline(mnist_run *run);
bool mnist_mean_baseline(mnist_run *run);

#endif
