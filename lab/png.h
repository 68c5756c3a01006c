/* png.h - grey images as uncompressed PNG files, without dependencies.
 *
 *   cli_picture p = cli_picture_new(280, 28);
 *   cli_picture_put(&p, 0, 0, digit, 28, 28);
 *   cli_picture_write(&p, "digits.png");
 *   cli_picture_free(&p);
 */
#ifndef KR_LAB_PNG_H
#define KR_LAB_PNG_H

#include <stdbool.h>

typedef struct cli_picture {
    int width, height;
    unsigned char *grey; /* row after row, 0 black, 255 white; NULL: out of memory */
} cli_picture;

/* Black. If out of memory all the others do nothing, except for the error message of write. */
cli_picture cli_picture_new(int width, int height);
void cli_picture_free(cli_picture *picture);

/* An image, or a rectangle of one shade; clipped at the borders. */
void cli_picture_put(cli_picture *picture, int x, int y, const unsigned char *grey, int width, int height);
void cli_picture_fill(cli_picture *picture, int x, int y, int width, int height, int shade);

/* Atomic: writes the whole file or leaves the old one; false after an error message. */
bool cli_picture_write(const cli_picture *picture, const char *path);

#endif
