/* task_mnist_baselines.h - what can be done with the images by simpler means. */
#ifndef KR_LAB_TASK_MNIST_BASELINES_H
#define KR_LAB_TASK_MNIST_BASELINES_H

#include "lab/task_mnist.h"

/* A linear classifier on pixels; the mean image as the answer to each, and the least that is possible. Both print a line;
 * false after a complaint. */
bool mnist_linear_baseline(mnist_run *run);
bool mnist_mean_baseline(mnist_run *run);

#endif
